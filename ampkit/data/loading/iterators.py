"""What `iter(loader)` gives: an iterator over batches, by which of a DataLoader's ways they are made.

Loaders of other libraries make one too, of an object with the attributes of PyTorch's DataLoader.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, Self


class DatasetKind:
    """Whether a dataset has indices, or is only iterated."""

    Map, Iterable = 0, 1


class Failure(NamedTuple):
    """In place of a batch: the exception that its dataset or its collate_fn raised."""

    error: Exception


class BatchIterator:
    """The batches of `loader` from its place on: a DataLoader, or an object with PyTorch's attributes of one.

    A batch that failed raises; the next call gives the batch behind it. A stream with more batches than it said warns.
    """

    def __init__(self, loader: Any):
        self._loader, self._given = loader, 0
        own = getattr(loader, "batches_from_here", None)
        self._batches: Iterator[Any] = _batches(loader) if own is None else own()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        found = next(self._batches)
        self._given += 1
        announced = getattr(self._loader, "_announced", None)
        if announced is not None and self._given > announced:
            shared = (
                "; does each worker read its share alone, by get_worker_info()?" if self._loader.num_workers else ""
            )
            text = f"DataLoader: an IterableDataset of len(loader) {announced} gave batch {self._given}{shared}"
            warnings.warn(text, UserWarning, stacklevel=2)
        if isinstance(found, Failure):
            raise found.error
        return found

    def __len__(self) -> int:
        return len(self._loader)

    def close(self) -> None:
        """Leave the iteration: workers end."""
        close: Any = getattr(self._batches, "close", None)
        if close is not None:
            close()


class DirectIterator(BatchIterator):
    """Makes each batch when it is asked for."""


class WorkerIterator(BatchIterator):
    """Has batches made in advance by the loader's workers."""

    def _shutdown_workers(self) -> None:
        self.close()


def _batches(loader: Any) -> Iterator[Any]:
    # Without workers, whose number changes no batch.
    indices, dataset = iter(loader._index_sampler), loader.dataset
    items = iter(dataset) if loader._dataset_kind == DatasetKind.Iterable else None
    for index in indices:
        if not loader._auto_collation:
            found = dataset[index] if items is None else next(items, _END)
            if found is _END:
                return
        elif items is None:
            found = [dataset[i] for i in index]
        else:
            found = list(islice(items, len(index)))
            if not found or (loader.drop_last and len(found) < len(index)):
                return
        yield loader.collate_fn(found)


_END = object()

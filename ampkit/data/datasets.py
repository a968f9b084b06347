"""Datasets as in torch.utils.data: map-style and iterable ones, tensors, subsets, and combinations of datasets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np

from .. import backends
from ..base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ..core import random
from ..core.arguments import checked_constructor, shown
from ..core.tensor import Tensor

_Item = TypeVar("_Item", covariant=True)


class Dataset(Generic[_Item]):
    """A map-style dataset: a subclass implements `__getitem__(index)` and `__len__()`."""

    def __getitem__(self, index: int) -> _Item:
        raise NotImplementedError(f"{type(self).__name__}.__getitem__")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        parts: list[Any] = [self, other]
        return ConcatDataset(parts)


class IterableDataset(Dataset[_Item]):
    """A dataset that is only iterated: a subclass implements `__iter__()`, and `__len__()` if the length is known.

    Each worker of a DataLoader iterates the whole dataset; with `get_worker_info` a subclass yields that worker's share
    alone. To resume, the DataLoader skips items, unless the dataset has `state_dict()` and `load_state_dict(state)`:
    after loading, `__iter__` must start behind the last item of that state; a state at the end starts from the
    beginning.
    """

    def __iter__(self) -> Iterator[_Item]:
        raise NotImplementedError(f"{type(self).__name__}.__iter__")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]  # chains, as in PyTorch
        return ChainDataset([self, other])


class BatchDataset(Dataset[Any]):
    """A map-style dataset that reads whole batches and knows the epoch: a subclass implements `batch` and `__len__`."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(column[0] for column in self.batch([range(len(self))[index]]))

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__}.__len__")

    def batch(self, indices: Any, epoch: int = 0) -> list[Tensor]:
        """The items at `indices` [b] int64 in `epoch` (which augmentation depends on), as tensors [b, ...]."""
        raise NotImplementedError(f"{type(self).__name__}.batch")


def _row(array: Any, index: Any) -> Tensor:
    with backends.device_guard(array):
        return Tensor(array[index, ...])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Tensors [n, ...] of the same length n; item i is the tuple of their rows i. A DataLoader reads batches at once.

    Raises DTypeError for arguments that are no Tensors, ShapeError for no tensors, 0-d tensors or different lengths.
    """

    def __init__(self, *tensors: Tensor):
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise DTypeError("TensorDataset", "tensors", type(tensor).__name__, "wrap it: ampkit.tensor(array)")
        if len({tensor.shape[:1] for tensor in tensors}) != 1 or tensors[0].ndim == 0:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "none"
            raise ShapeError("TensorDataset", "tensors of one length along axis 0", shapes)
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        try:
            return tuple(_row(tensor.array, index) for tensor in self.tensors)
        except IndexError as error:
            raise RangeError("TensorDataset", f"an index within {len(self)} items", str(error)) from None

    def __len__(self) -> int:
        return self.tensors[0].shape[0]


class Subset(Dataset[Any]):
    """The items of `dataset` at `indices`, in that order. Raises DTypeError without `__getitem__`."""

    def __init__(self, dataset: Any, indices: Sequence[int]):
        if not hasattr(dataset, "__getitem__") or isinstance(dataset, (type, np.dtype)):
            raise DTypeError("Subset", "a dataset with __getitem__", shown(dataset))
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class _KindError(DTypeError, AssertionError):
    """A dataset of the wrong kind: AssertionError in PyTorch."""


class ConcatDataset(Dataset[Any]):
    """Map-style datasets concatenated. Raises ArgumentError for an empty list, DTypeError for an IterableDataset."""

    def __init__(self, datasets: Iterable[Sized]):
        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise ArgumentError("ConcatDataset", "at least one dataset", "none")
        if strange := [each for each in self.datasets if not isinstance(each, Sized)]:
            raise DTypeError("ConcatDataset", "datasets with a length", shown(strange[0]))
        if any(isinstance(each, IterableDataset) for each in self.datasets):
            raise _KindError("ConcatDataset", "datasets with indices", "an IterableDataset", "ChainDataset joins those")
        self.cumulative_sizes = list(accumulate(map(len, self.datasets)))

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise RangeError("ConcatDataset", f"an index below {len(self)}", f"{index}")
        index %= len(self)
        at = bisect_right(self.cumulative_sizes, index)
        return self.datasets[at][index - (self.cumulative_sizes[at - 1] if at else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset[Any]):
    """IterableDatasets chained one after the other. Raises DTypeError for a dataset of another kind."""

    def __init__(self, datasets: Iterable[Any]):
        super().__init__()
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            self._checked(dataset)
            yield from dataset

    def __len__(self) -> int:
        return sum(len(self._checked(dataset)) for dataset in self.datasets)

    def _checked(self, dataset: Any) -> Any:
        if not isinstance(dataset, IterableDataset):
            cure = "ConcatDataset joins those with indices"
            raise _KindError("ChainDataset", "IterableDatasets", f"a {type(dataset).__name__}", cure)
        return dataset


class StackDataset(Dataset[Any]):
    """Datasets of the same length, zipped: item i is the tuple of their items i, or a dict for keyword arguments.

    Raises ArgumentError for no datasets, for positional and keyword ones together, and for different lengths.
    """

    def __init__(self, *args: Sized, **kwargs: Sized):
        self.datasets: Any = args or kwargs
        datasets = [*args, *kwargs.values()]
        if not all(map(_is_indexed, datasets)):
            raise DTypeError("StackDataset", "datasets with a length", ", ".join(map(shown, datasets)))
        if not datasets or (args and kwargs) or len(set(map(len, datasets))) != 1:
            got = f"lengths {list(map(len, datasets))}" + (", some of them named" if args and kwargs else "")
            raise ArgumentError("StackDataset", "datasets of one length, all by name or none", got)
        self._length = len(datasets[0])

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The items of a batch; datasets that read several at once do so.

        Raises ArgumentError for one whose `__getitems__` gives another number of items.
        """
        named = self.datasets if isinstance(self.datasets, dict) else dict(enumerate(self.datasets))
        columns = {}
        for name, dataset in named.items():
            several = getattr(dataset, "__getitems__", None)
            columns[name] = several(indices) if callable(several) else [dataset[i] for i in indices]
            if len(columns[name]) != len(indices):
                raise ArgumentError("StackDataset", f"{len(indices)} items", f"{len(columns[name])} of dataset {name}")
        rows = list(zip(*columns.values(), strict=True))
        return [dict(zip(named, row, strict=True)) for row in rows] if isinstance(self.datasets, dict) else rows

    def __len__(self) -> int:
        return self._length


def _is_indexed(dataset: Any) -> bool:
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and getattr(dataset, "shape", True) != ()


def random_split(dataset: Any, lengths: Sequence[float], generator: random.Stream | None = None) -> list[Subset]:
    """Split `dataset` at random into disjoint Subsets of the given lengths, or fractions that sum to 1.

    Fractions are rounded down; the remaining items go to the first parts, one each. generator: a random stream, by
    default the one of `manual_seed`. Raises ArgumentError unless the lengths sum to the dataset's.
    """
    total = len(dataset)
    parts: list[Any] = list(lengths)
    if not all(isinstance(n, int) for n in parts) and abs(sum(parts) - 1) < 1e-9 and min(parts) >= 0:
        parts = [int(total * fraction) for fraction in parts]
        for i in range(total - sum(parts)):
            parts[i % len(parts)] += 1
    if sum(parts) != total or any(not isinstance(n, int) or n < 0 for n in parts):
        raise ArgumentError("random_split", f"lengths that add up to {total}, or shares to 1", f"{list(lengths)}")
    order = random.next_draw(generator).permutation(total).tolist()
    ends = list(accumulate(parts))
    return [Subset(dataset, order[end - n : end]) for n, end in zip(parts, ends, strict=True)]


def read_batch(dataset: Any, indices: Any, epoch: int) -> Any:
    """The batch at `indices` as tensors [b, ...] if the dataset, or that of its Subsets, reads batches; else None."""
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, np.asarray(dataset.indices)[indices]
    if isinstance(dataset, BatchDataset):
        return dataset.batch(indices, epoch)
    return list(dataset[indices]) if isinstance(dataset, TensorDataset) else None


for _made in (TensorDataset, Subset, ConcatDataset, ChainDataset, StackDataset):
    checked_constructor(_made)

"""Streams of other libraries as sources of a DataLoader, by their own protocols: none of the libraries is imported.

Hugging Face's `IterableDataset`, `WebDataset`, Grain's `IterDataset` and `DataLoader`, PyTorch's `IterableDataset`.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from ..base.errors import FileError, StateError
from .datasets import IterableDataset


def as_stream(dataset: Any) -> IterableDataset[Any] | None:
    """`dataset` itself if it is an IterableDataset, that of another library as one, None for anything else."""
    if isinstance(dataset, IterableDataset):
        return dataset
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(dataset).__mro__]
    return next((_STREAMS[kind](dataset) for kind in kinds if kind in _STREAMS), None)


class _Stream(IterableDataset[Any]):
    """A stream of another library.

    A state is that of the source within an epoch; None if it has none, and the DataLoader skips items instead. A state
    of another epoch than `set_epoch` has said is one at its end, and is ignored.
    """

    def __init__(self, source: Any):
        self.source, self.epoch = source, 0
        self._start: Any = None

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Any]:
        start, self._start = self._start, None
        in_epoch = start is not None and start["epoch"] == self.epoch
        return self._items(start["source"] if in_epoch else None)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, from 0: what a source draws follows from it."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any] | None:
        """The place behind the last item."""
        place = self._place()
        return None if place is None else {"epoch": self.epoch, "source": place}

    def load_state_dict(self, state: Any) -> None:
        """Start the next iteration behind the last item of this state."""
        self._start = state

    def _items(self, place: Any) -> Iterator[Any]:
        return iter(self.source)

    def _place(self) -> Any:
        return None


class _HuggingFaceStream(_Stream):
    """`datasets.IterableDataset`, whose state drops what a shuffle buffer holds: with a buffer, items are skipped."""

    def __init__(self, source: Any):
        super().__init__(source)
        self._is_exact = not _has_buffer(source)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.source.set_epoch(epoch)

    def _items(self, place: Any) -> Iterator[Any]:
        # A loaded state stays with the source, for each iteration of its epoch: that of another one is ignored.
        self.source.load_state_dict({**self.source.state_dict(), "epoch": -1} if place is None else place)
        return iter(self.source)

    def _place(self) -> Any:
        return self.source.state_dict() if self._is_exact else None


def _has_buffer(source: Any) -> bool:
    """Whether a stream of Hugging Face's shuffles in a buffer, or does not show its stages."""
    stages = [getattr(source, "_ex_iterable", None)]
    for stage in stages:
        if stage is None or type(stage).__name__.startswith("BufferShuffled"):
            return True
        stages += [stage.ex_iterable] if hasattr(stage, "ex_iterable") else getattr(stage, "ex_iterables", [])
    return False


class _GrainStream(_Stream):
    """`grain.IterDataset` and `grain.DataLoader`, whose iterators have `get_state` and `set_state`."""

    def _items(self, place: Any) -> Iterator[Any]:
        self._iterator = iter(self.source)
        if place is not None:
            self._iterator.set_state(place["bytes"].encode() if "bytes" in place else place["state"])
        return self._iterator

    def _place(self) -> Any:
        state = self._iterator.get_state()
        # A DataLoader's is JSON as bytes, which no checkpoint holds.
        return {"bytes": state.decode()} if isinstance(state, bytes) else {"state": state}


class _WebDatasetStream(_Stream):
    """`webdataset.WebDataset`, which has no state: items are drawn again, and the key of the last one is compared."""

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        for stage in self.source.pipeline:
            if hasattr(stage, "epoch"):  # of detshuffle and ResampledShards, which count it up before they draw
                stage.epoch = epoch - 1

    def _items(self, place: Any) -> Iterator[Any]:
        items = _until_damaged(self.source)
        self._taken, self._last = 0, None
        if place is not None:
            for item in islice(items, place["taken"]):
                self._note(item)
            if self._last != place["last"]:
                got = f"{self._last!r} as number {place['taken']}, which was {place['last']!r}"
                cure = "shuffle with a seed: WebDataset(..., detshuffle=True, seed=0), .shuffle(1000, seed=0)"
                raise StateError("DataLoader", "a WebDataset that gives the same samples again", got, cure)
        return self._noted(items)

    def _noted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self._note(item)
            yield item

    def _note(self, item: Any) -> None:
        self._taken += 1
        self._last = item.get("__key__") if isinstance(item, dict) else None

    def _place(self) -> Any:
        return {"taken": self._taken, "last": self._last}


def _until_damaged(source: Any) -> Iterator[Any]:
    # webdataset adds the name of the shard to the arguments of tarfile's errors.
    try:
        yield from source
    except (tarfile.TarError, EOFError, zlib.error) as error:
        got = ", ".join(str(each) for each in error.args if isinstance(each, str)) or type(error).__name__
        cure = "copy the shard again, or leave it out"
        raise FileError("webdataset", "shards that can be read to their end", got, cure) from error


_STREAMS: dict[tuple[str, str], Callable[[Any], _Stream]] = {
    ("datasets", "IterableDataset"): _HuggingFaceStream,
    ("webdataset", "DataPipeline"): _WebDatasetStream,
    ("grain", "IterDataset"): _GrainStream,
    ("grain", "DataLoader"): _GrainStream,
    ("torch", "IterableDataset"): _Stream,
}

"""The batches of epoch after epoch of any iterable, with a place that a checkpoint can hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, StateError
from ...core import random
from ...core.dlpack import from_dlpack
from ...core.nested import tensors_in, with_tensors
from ...core.saved_state import need_count, need_keys
from ...core.tensor import Tensor

Batches = Iterable[Any] | Callable[[], Iterable[Any]]


def iterator(where: str, data: Batches) -> Iterator[Any]:
    """A new iterator over `data`, or over what `data()` returns. Raises ArgumentError for anything else."""
    found: Any = data() if callable(data) and not hasattr(data, "__iter__") else data
    try:
        return iter(found)
    except TypeError:
        got = f"a {type(found).__name__}"
        raise ArgumentError(where, "an iterable of batches, or a function that returns one", got) from None


def on_device(batch: Any, device: str) -> Any:
    """The batch with its tensors, in lists, tuples and dicts, on `device`; those of PyTorch or JAX become ampkit's."""
    batch = _converted(batch)
    return with_tensors(batch, (each.to(device) for each in tensors_in(batch)))


def _converted(values: Any) -> Any:
    if isinstance(values, (Tensor, np.ndarray)):
        return values
    if isinstance(values, dict):
        return {key: _converted(item) for key, item in values.items()}
    if isinstance(values, (list, tuple)):
        items = [_converted(item) for item in values]
        return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)
    return from_dlpack(values) if hasattr(values, "__dlpack__") and hasattr(values, "__dlpack_device__") else values


class Epochs:
    """An iterator over the batches of `data`, epoch after epoch; it ends after `most` epochs, or an empty one.

    data: a DataLoader or another iterable with `state_dict` and `load_state_dict`, which goes to its place by them; any
    other iterable, which is iterated anew in each epoch, or a function that returns one, which is called anew: a resume
    skips the batches already seen. epoch, position: of the next batch. length: batches in an epoch, None if unknown.
    """

    def __init__(self, data: Batches, most: int | None = None, where: str = "train_dataloaders"):
        self.data, self.most, self._where = data, most, where
        self.epoch, self.position, self.length = 0, 0, _length(data)
        self._batches: Iterator[Any] | None = None
        self._random = random.default.state()  # at the start of the epoch
        self._last: Any = None  # the batch before the next one

    @property
    def _keeps_its_place(self) -> bool:
        return hasattr(self.data, "state_dict") and hasattr(self.data, "load_state_dict")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while self.most is None or self.epoch < self.most:
            if self._batches is None:
                self._random = random.default.state()
                self._batches = iterator(self._where, self.data)
            for batch in self._batches:
                self._advance(batch)
                return batch
            if self.position == 0:
                break
            self._end()
        raise StopIteration

    def _advance(self, batch: Any) -> None:
        self.position, self._last = self.position + 1, batch
        if self.position == self.length or (self.length is None and getattr(self.data, "position", None) == 0):
            self._end()

    def _end(self) -> None:
        self.epoch, self.position, self._batches = self.epoch + 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch; of data that keeps none itself, also a checksum of the batch before it."""
        held: Any = self.data
        place = {"epoch": self.epoch, "position": self.position}
        if self._keeps_its_place:
            return {**place, "loader": held.state_dict()}
        return {**place, "random": list(self._random), "last": _checksum(self._last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a place that `state_dict` gave.

        Raises ArgumentError for data that cannot be iterated from their beginning, StateError if they are others.
        """
        need_keys(self._where, state, ("epoch", "position", "loader" if self._keeps_its_place else "last"))
        self.epoch, self.position = (need_count(self._where, key, state[key]) for key in ("epoch", "position"))
        held: Any = self.data
        if self._keeps_its_place:
            held.load_state_dict(state["loader"])
        elif self.epoch or self.position:
            self._skip(state)

    def _skip(self, state: Mapping[str, Any]) -> None:
        if not callable(self.data) and iterator(self._where, self.data) is self.data:
            needs, got = "data that can be iterated from their beginning to resume", f"a {type(self.data).__name__}"
            raise ArgumentError(self._where, needs, got, "give a list, a DataLoader, or the function that makes it")
        now = random.default.state()
        try:
            random.default.restore(tuple(state["random"]))
            self._random = random.default.state()
            if self.position:
                self._batches = iterator(self._where, self.data)
                seen = list(islice(self._batches, self.position))
                self._need_same(seen, state["last"])
        finally:
            random.default.restore(now)

    def _need_same(self, seen: list[Any], last: str) -> None:
        if len(seen) < self.position or _checksum(seen[-1]) != last:
            got = f"{len(seen)} batches" if len(seen) < self.position else f"another batch {self.position} of epoch"
            cure = "resume with the data of the run, in the same order: a DataLoader keeps its own"
            raise StateError(self._where, f"the {self.position} batches that were seen already", got, cure)
        self._last = seen[-1]


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # data of unknown length
        return None


def _checksum(batch: Any) -> str:
    """The SHA-256 of a batch's numbers, shortened; those of its tensors and arrays."""
    digest = hashlib.sha256()
    for value in _arrays(batch):
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def _arrays(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Tensor):
        yield batch.numpy(force=True)
    elif isinstance(batch, np.ndarray):
        yield batch
    elif isinstance(batch, dict):
        yield from _arrays(list(batch.values()))
    elif isinstance(batch, list | tuple):
        for each in batch:
            yield from _arrays(each)

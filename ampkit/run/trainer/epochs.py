"""The batches of epoch after epoch of any iterable, with a place that a checkpoint can hold."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

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
        self._ahead: Any = _NOTHING  # the next batch where it was looked at already, or the error in its place
        self._place: dict[str, Any] | None = None  # of data that keep it themselves, before that look
        self._random = random.default.state()  # at the start of the epoch
        self._last: Any = None  # the batch before the next one
        self._back: dict[str, Any] | None = None  # the place to go back to, where the next batch is asked for

    @property
    def _keeps_its_place(self) -> bool:
        return hasattr(self.data, "state_dict") and hasattr(self.data, "load_state_dict")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._back is not None:
            self.load_state_dict(self._back)
        while self.most is None or self.epoch < self.most:
            batch = self._drawn()
            if batch is not _NOTHING:
                self._advance(batch)
                return batch
            if self.position == 0:
                break
            self._end()
        raise StopIteration

    def _drawn(self) -> Any:
        """The next batch of this epoch, or _NOTHING at its end."""
        ahead, self._ahead, self._place = self._ahead, _NOTHING, None
        if isinstance(ahead, _Failure):
            raise ahead.error
        if ahead is not _NOTHING:
            return ahead
        if self._batches is None:
            self._random = random.default.state()
            self._batches = iterator(self._where, self.data)
        return next(self._batches, _NOTHING)

    def has_ended(self, count: int) -> bool:
        """Whether the last `count` batches, which are those of an update, had the end of an epoch among them.

        Of data of unknown length that do not say it themselves this looks at the next batch.
        """
        tells = self.length is not None or hasattr(self.data, "position") or self._back is not None
        if not tells and self.position >= count and self._ahead is _NOTHING:
            self._look_ahead()
        return self.epoch > 0 and self.position < count

    def _look_ahead(self) -> None:
        place, state = self._own_place() if self._keeps_its_place else None, random.default.state()
        try:
            self._ahead = self._drawn()
        except Exception as error:  # of the batch that is not asked for yet
            random.default.restore(state)
            self._ahead = _Failure(error)
        if self._ahead is _NOTHING:
            self._end()
        self._place = place

    def _advance(self, batch: Any) -> None:
        self.position, self._last = self.position + 1, batch
        if self.position == self.length or (self.length is None and getattr(self.data, "position", None) == 0):
            self._end()

    def _end(self) -> None:
        self.epoch, self.position, self._batches = self.epoch + 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch; of data that keeps none itself, also checksums of the batches around it."""
        return self.place()()

    def place(self) -> Callable[[], dict[str, Any]]:
        """What gives the `state_dict` of this moment later: most steps need none, and checksums take time."""
        if self._back is not None or self._keeps_its_place:
            state = self._back or self._place or self._own_place()
            return lambda: state
        place = {"epoch": self.epoch, "position": self.position, "random": list(self._random)}
        return partial(_with_checksums, place, self._last, self._ahead)

    def go_back(self, place: Callable[[], dict[str, Any]]) -> None:
        """Draw the next batch from a `place` of before; `state_dict` gives it until then."""
        self._back, self._batches = place(), None
        self._ahead, self._place = _NOTHING, None
        self.epoch, self.position = self._back["epoch"], self._back["position"]

    def _own_place(self) -> dict[str, Any]:
        held: Any = self.data
        return {"epoch": self.epoch, "position": self.position, "loader": copy.deepcopy(held.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a place that `state_dict` gave.

        Raises ArgumentError for data that cannot be iterated from their beginning, StateError if they are others.
        """
        need_keys(self._where, state, ("epoch", "position", "loader" if self._keeps_its_place else "last"))
        self.epoch, self.position = (need_count(self._where, key, state[key]) for key in ("epoch", "position"))
        self._ahead, self._place = _NOTHING, None
        held: Any = self.data
        if self._keeps_its_place:
            held.load_state_dict(state["loader"])
        elif self.epoch or self.position:
            self._skip(state)
        self._back = None

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
                self._need_same(seen, state["last"], self.position)
                self._last = seen[-1]
                if state.get("next") is not None:  # drawn before the random state of the checkpoint
                    self._look_ahead()
                    seen = [*seen, *([] if self._ahead is _NOTHING else [self._ahead])]
                    self._need_same(seen, state["next"], self.position + 1)
        finally:
            random.default.restore(now)

    def _need_same(self, seen: list[Any], last: str, count: int) -> None:
        if len(seen) < count or _checksum(seen[-1]) != last:
            got = f"{len(seen)} batches" if len(seen) < count else f"another batch {count} of epoch"
            cure = "resume with the data of the run, in the same order: a DataLoader keeps its own"
            raise StateError(self._where, f"the {count} batches that were seen already", got, cure)


_NOTHING = object()  # None may be a batch


class _Failure(NamedTuple):
    """What the data raised when the next batch was looked at; it is raised where that batch is asked for."""

    error: Exception


def _with_checksums(place: dict[str, Any], last: Any, ahead: Any) -> dict[str, Any]:
    looked = ahead is not _NOTHING and not isinstance(ahead, _Failure)
    return {**place, "last": _checksum(last), "next": _checksum(ahead) if looked else None}


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

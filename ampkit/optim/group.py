"""Group: the options of a parameter group, those that schedules move on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import numpy as np

from .. import backends
from ..arena import Block
from ..backends import Array, Backend
from ..core import dtypes
from ..core.errors import ArgumentError, StateError
from ..flat import look


class Group(MutableMapping[str, Any]):
    """A parameter group: PyTorch's dict. `group["lr"]` reads a float, and assigning to it writes to the device.

    blocks: where its parameters live. device: the hyperparameters that live on the device, as float64 arrays. owner:
    a weak reference to the optimizer, which looks over new options; its memory goes when the last one drops it.
    """

    def __init__(
        self,
        options: dict[str, Any],
        blocks: list[Block],
        device_keys: tuple[str, ...],
        owner: Callable[[], Any],
    ):
        self.blocks, self._options, self._owner = blocks, dict(options), owner
        backend = blocks[0].backend if blocks else backends.get(None)
        self.device = {key: _scalar(backend, options[key]) for key in device_keys}
        self.scheduled: set[str] = set()  # those whose value only the device knows

    def __getitem__(self, key: str) -> Any:
        if key not in self.scheduled:
            return self._options[key]
        array = self.device[key]
        return look(array) if not array.ndim else tuple(backends.of(array).to_numpy(array).tolist())

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "params":
            raise _fixed("other parameters", "optimizer.add_param_group adds some; make a new optimizer for others")
        if key == "stochastic_rounding" and bool(value) != bool(self._options.get(key)):
            raise _fixed(
                "another rounding", "give stochastic_rounding when the optimizer is made: it says what memory holds"
            )
        value = plain(value)
        if (owner := self._owner()) is not None:
            owner.check_options({key: value})
        if key in self.device:
            home = self.device[key]
            home[...] = backends.of(home).asarray(value, dtypes.float64)
            self.scheduled.discard(key)
        self._options[key] = value

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __delitem__(self, key: str) -> None:
        if key == "params" or key in self.device:
            raise _fixed(f"one without {key!r}", "an update reads it")
        del self._options[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __repr__(self) -> str:
        return "\n".join(f"    {key}: {self[key]}" for key in sorted(self) if key != "params")


def _fixed(found: str, cure: str) -> StateError:
    return StateError("parameter group", "the parameters and options that its optimizer was made with", found, cure)


def plain(value: Any) -> Any:
    """A hyperparameter as Python numbers, if it came as a Tensor or an array of one element."""
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def need(where: str, options: dict[str, Any], key: str, low: float = 0.0, below: float = math.inf) -> None:
    """Raise ArgumentError unless `options[key]`, if it is there, is a number in [low, below)."""
    value = options.get(key, low)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < below:
        range_ = f"{key} >= {low:g}" if below == math.inf else f"{key} in [{low:g}, {below:g})"
        raise ArgumentError(where, range_, repr(value))


def need_betas(where: str, options: dict[str, Any]) -> None:
    """Raise ArgumentError unless `options["betas"]`, if it is there, is a pair of numbers in [0, 1)."""
    betas = options.get("betas", (0, 0))
    pair = isinstance(betas, (tuple, list)) and len(betas) == 2
    if not pair or not all(isinstance(b, (int, float)) and 0 <= b < 1 for b in betas):
        raise ArgumentError(where, "two betas in [0, 1)", repr(betas))


def _scalar(backend: Backend, value: Any) -> Array:
    array = backend.zeros(np.shape(value), dtypes.float64)
    array[...] = backend.asarray(value, dtypes.float64)
    return array

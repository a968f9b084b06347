"""The loss scale: a number on the device, and the rule by which it moves there."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, Backend
from ..base import dtypes
from ..base.dtypes import float32
from ..base.errors import ArgumentError, StateError
from ..core.fp_errors import ignore_fp_errors
from ..core.primitive import Primitive
from ..optim.flat.memory import look

TINY = 2.0**-126  # the smallest normal float32: below it the scale's inverse would overflow
LARGEST = dtypes.finfo(float32).max
_ABOVE_ONE, _BELOW_ONE = math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0)


def _move_scale(
    scale: Array,
    tracker: Array,
    patience: Array,
    overflow: Array,
    growth: float,
    backoff: float,
    interval: int,
    hysteresis: int,
    low: float,
    high: float,
) -> None:
    left = np.where(overflow, np.maximum(patience - 1, 0), hysteresis)
    count = np.where(overflow, 0, tracker + 1)
    grow = count >= interval
    grown = scale * growth
    grown = np.where(np.isfinite(grown), np.minimum(grown, high), scale)
    lowered = np.where(left <= 0, np.maximum(scale * backoff, low), scale)
    scale[...] = np.where(overflow, lowered, np.where(grow, grown, scale))
    tracker[...] = np.where(grow, 0, count)
    patience[...] = left


# (scale, tracker, patience, overflow, constants): grow, back off or stay, in place
move_scale = Primitive("move_scale", "amp.found_inf", _move_scale)


class State(NamedTuple):
    """0-d arrays on the device: the scale (float32), good steps since it grew, overflows left until it backs off."""

    scale: Array
    tracker: Array
    patience: Array


class LossScale:
    """A loss scale: times `growth` after `interval` good steps, times `backoff` after an overflow, within [low, high].

    start: (scale, good steps, overflows left) that it begins with; state: on the device, None before the first use.
    hysteresis: the overflow in a row, counted from 1, from which on it backs off.
    Raises ArgumentError for values out of range.
    """

    def __init__(
        self,
        start: Any,
        growth: Any,
        backoff: Any,
        interval: Any,
        low: Any = None,
        high: Any = None,
        hysteresis: Any = 1,
    ):
        least = TINY if low is None else number("min_scale", low, TINY, LARGEST)
        most = LARGEST if high is None else number("max_scale", high, least, LARGEST)
        self.low, self.high = float(np.float32(least)), float(np.float32(most))  # as the device holds them
        self.hysteresis = whole("hysteresis", hysteresis, 1)
        self.start = (number("init_scale", start, least, most), 0, self.hysteresis)
        self.state: State | None = None
        self.set_growth(growth)
        self.set_backoff(backoff)
        self.set_interval(interval)

    def set_growth(self, value: Any) -> None:
        self.growth = number("growth_factor", value, _ABOVE_ONE, LARGEST, "more than 1")

    def set_backoff(self, value: Any) -> None:
        self.backoff = number("backoff_factor", value, TINY, _BELOW_ONE, "between 0 and 1")

    def set_interval(self, value: Any) -> None:
        self.interval = whole("growth_interval", value, 1)

    def on(self, backend: Backend) -> State:
        """The arrays of the state, made on `backend` at the first call."""
        if self.state is None:
            self.state = State(*(backend.zeros((), dtype) for dtype in (float32, dtypes.int32, dtypes.int32)))
            self._write()
        return self.state

    def _write(self) -> None:
        for array, value in zip(self.state or (), self.start, strict=False):
            with backends.device_guard(array):
                array[...] = value

    def move(self, overflow: Array) -> None:
        """Grow, back off or stay, by what the device says of an iteration's gradients."""
        assert self.state is not None
        with ignore_fp_errors():
            rule = (self.growth, self.backoff, self.interval, self.hysteresis, self.low, self.high)
            move_scale(*self.state, overflow, *rule)

    def set(self, value: Any) -> None:
        """Set the scale; the count of good steps stays."""
        assert self.state is not None
        new = number("new_scale", value, self.low, self.high)
        with backends.device_guard(self.state.scale):
            self.state.scale[...] = backends.backend_of(self.state.scale).asarray(new, float32)

    def values(self) -> tuple[float, int, int]:
        """(scale, good steps, overflows left) on the host; waits for the device."""
        if self.state is None:
            return self.start
        scale, tracker, patience = (look(array) for array in self.state)
        return float(scale), int(tracker), int(patience)

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's keys, and the count of hysteresis."""
        scale, tracker, patience = self.values()
        rule = {
            "growth_factor": self.growth,
            "backoff_factor": self.backoff,
            "growth_interval": self.interval,
        }
        return {"scale": scale, **rule, "_growth_tracker": tracker, "_hysteresis_tracker": patience}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state; a scale beyond the bounds is moved to them. Raises before anything changes."""
        where = "GradScaler.load_state_dict"
        if not isinstance(state_dict, dict):
            raise ArgumentError(where, "the dict of state_dict()", f"a {type(state_dict).__name__}")
        if not state_dict:
            line = (
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler"
            )
            raise StateError(f"{line}.", help="load the state of an enabled GradScaler, or disable this one")
        keys = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        missing = [key for key in keys if key not in state_dict]
        if missing:
            raise ArgumentError(where, "the whole state", f"one without {', '.join(missing)}")
        given = LossScale(*(state_dict[key] for key in keys[:4]))
        tracker = whole("_growth_tracker", state_dict["_growth_tracker"], 0)
        patience = whole("_hysteresis_tracker", state_dict.get("_hysteresis_tracker", self.hysteresis), 0)
        self.growth, self.backoff, self.interval = given.growth, given.backoff, given.interval
        self.start = (min(max(given.start[0], self.low), self.high), tracker, min(patience, self.hysteresis))
        self._write()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "start": self.values(), "state": None}


def number(name: str, value: Any, low: float, high: float, range_: str | None = None) -> float:
    """`value` as a float. Raises ArgumentError unless it is a number in [low, high], in words `range_`."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not low <= value <= high:
        raise ArgumentError(
            "GradScaler", f"{name} as a finite number {range_ or f'in [{low:g}, {high:g}]'}", repr(value)
        )
    return float(value)


def whole(name: str, value: Any, low: int) -> int:
    """`value` as an int. Raises ArgumentError unless it is an integer from `low` to what 32 bits hold."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value < 2**31:
        raise ArgumentError("GradScaler", f"{name} as an integer from {low} to {2**31 - 1}", repr(value))
    return int(value)

"""The loss scale: a number on the device, and the rule by which it grows and backs off there."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, Backend
from ..base.dtypes import finfo, float32, int32
from ..base.errors import ArgumentError, StateError
from ..core.dispatch import primitive
from ..core.fp_errors import ignore_fp_errors
from ..core.saved_state import need_keys
from ..optim.flat.memory import read_scalar

TINY = 2.0**-126  # the smallest normal float32: below it the scale's inverse would overflow
LARGEST = finfo(float32).max
_ABOVE_ONE, _BELOW_ONE = math.nextafter(1.0, 2.0), math.nextafter(1.0, 0.0)


@primitive("amp.found_inf")
def update_scale(
    scale: Array,
    growth_tracker: Array,
    hysteresis_tracker: Array,
    found_inf: Array,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
    hysteresis: int,
    min_scale: float,
    max_scale: float,
) -> None:
    """Grow, back off or stay, in place on the device."""
    overflows_left = np.where(found_inf, np.maximum(hysteresis_tracker - 1, 0), hysteresis)
    steps = np.where(found_inf, 0, growth_tracker + 1)
    grows = steps >= growth_interval
    grown = scale * growth_factor
    grown = np.where(np.isfinite(grown), np.minimum(grown, max_scale), scale)
    lowered = np.where(overflows_left <= 0, np.maximum(scale * backoff_factor, min_scale), scale)
    scale[...] = np.where(found_inf, lowered, np.where(grows, grown, scale))
    growth_tracker[...] = np.where(grows, 0, steps)
    hysteresis_tracker[...] = overflows_left


class ScaleState(NamedTuple):
    """0-d arrays on the device: the scale, float32; steps without overflow since it grew, and overflows left until it
    backs off, int32."""

    scale: Array
    growth_tracker: Array
    hysteresis_tracker: Array


class LossScale:
    """A loss scale: times growth_factor after growth_interval steps without overflow, times backoff_factor after an
    overflow, within [min_scale, max_scale].

    initial: (scale, growth tracker, hysteresis tracker) to begin with; state: on the device, None before the first use.
    hysteresis: it backs off from the overflow of this number in a row, counted from 1, on.
    Raises ArgumentError for values out of range.
    """

    def __init__(
        self,
        init_scale: Any,
        growth_factor: Any,
        backoff_factor: Any,
        growth_interval: Any,
        min_scale: Any = None,
        max_scale: Any = None,
        hysteresis: Any = 1,
    ):
        low = TINY if min_scale is None else number("min_scale", min_scale, TINY, LARGEST)
        high = LARGEST if max_scale is None else number("max_scale", max_scale, low, LARGEST)
        self.min_scale, self.max_scale = float(np.float32(low)), float(np.float32(high))  # as the device rounds them
        self.hysteresis = integer("hysteresis", hysteresis, 1)
        self.initial = (number("init_scale", init_scale, low, high), 0, self.hysteresis)
        self.state: ScaleState | None = None
        self.set_growth_factor(growth_factor)
        self.set_backoff_factor(backoff_factor)
        self.set_growth_interval(growth_interval)

    def set_growth_factor(self, value: Any) -> None:
        self.growth_factor = number("growth_factor", value, _ABOVE_ONE, LARGEST, "more than 1")

    def set_backoff_factor(self, value: Any) -> None:
        self.backoff_factor = number("backoff_factor", value, TINY, _BELOW_ONE, "between 0 and 1")

    def set_growth_interval(self, value: Any) -> None:
        self.growth_interval = integer("growth_interval", value, 1)

    def on(self, backend: Backend) -> ScaleState:
        """The state on the device, created on `backend` at the first call."""
        if self.state is None:
            self.state = ScaleState(*(backend.zeros((), dtype) for dtype in (float32, int32, int32)))
            self._write_initial()
        return self.state

    def _write_initial(self) -> None:
        for array, value in zip(self.state or (), self.initial, strict=False):
            with backends.device_guard(array):
                array[...] = value

    def update(self, found_inf: Array) -> None:
        """Grow, back off or stay, by the flag on the device."""
        assert self.state is not None
        constants = (self.growth_factor, self.backoff_factor, self.growth_interval, self.hysteresis)
        with ignore_fp_errors():
            update_scale(*self.state, found_inf, *constants, self.min_scale, self.max_scale)

    def set(self, value: Any) -> None:
        """Set the scale; the growth tracker stays."""
        assert self.state is not None
        new = number("new_scale", value, self.min_scale, self.max_scale)
        with backends.device_guard(self.state.scale):
            self.state.scale[...] = backends.backend_of(self.state.scale).asarray(new, float32)

    def values(self) -> tuple[float, int, int]:
        """(scale, growth tracker, hysteresis tracker) on the host; waits for the device."""
        if self.state is None:
            return self.initial
        scale, tracker, hysteresis = (read_scalar(array) for array in self.state)
        return float(scale), int(tracker), int(hysteresis)

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's keys, and the hysteresis tracker."""
        scale, tracker, hysteresis = self.values()
        rule = {name: getattr(self, name) for name in ("growth_factor", "backoff_factor", "growth_interval")}
        return {"scale": scale, **rule, "_growth_tracker": tracker, "_hysteresis_tracker": hysteresis}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; a scale beyond the bounds is clamped. Raises before anything changes."""
        where = "GradScaler.load_state_dict"
        if not isinstance(state_dict, dict):
            raise ArgumentError(where, "the dict of state_dict()", f"a {type(state_dict).__name__}")
        if not state_dict:
            why = "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler"
            raise StateError(f"{why}.", cure="load the state of an enabled GradScaler, or disable this one")
        keys = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        need_keys(where, state_dict, keys)
        checked = LossScale(*(state_dict[key] for key in keys[:4]))
        tracker = integer("_growth_tracker", state_dict["_growth_tracker"], 0)
        saved = state_dict.get("_hysteresis_tracker", self.hysteresis)
        hysteresis = min(integer("_hysteresis_tracker", saved, 0), self.hysteresis)
        for name in keys[1:4]:
            setattr(self, name, getattr(checked, name))
        self.initial = (min(max(checked.initial[0], self.min_scale), self.max_scale), tracker, hysteresis)
        self._write_initial()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "initial": self.values(), "state": None}


def number(name: str, value: Any, low: float, high: float, range_: str | None = None) -> float:
    """`value` as a float. Raises ArgumentError unless it is a number in [low, high]; `range_` says so in words."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not low <= value <= high:
        got = repr(value)
        raise ArgumentError("GradScaler", f"{name} as a finite number {range_ or f'in [{low:g}, {high:g}]'}", got)
    return float(value)


def integer(name: str, value: Any, low: int) -> int:
    """`value` as an int. Raises ArgumentError unless it is an integer from `low` to what 32 bits hold."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value < 2**31:
        raise ArgumentError("GradScaler", f"{name} as an integer from {low} to {2**31 - 1}", repr(value))
    return int(value)

"""A reference model of GradScaler, written from its documentation: the effect of every call, or its error.

The model stores unscaled gradients and never multiplies or divides by a scale. All numbers are powers of two or small
sums of them, so nothing is rounded and the comparison is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

READY, UNSCALED, STEPPED = "ready", "unscaled", "stepped"
PLAIN, SCALED, MIXED = "plain", "scaled", "mixed"
SKIPS = 50


class Refused(Exception):  # noqa: N818 - the expected error of a call
    """The scaler must raise the error of this name, whose message contains `line`."""

    def __init__(self, error: str, line: str = ""):
        super().__init__(f"{error}: {line}")
        self.error, self.line = error, line


@dataclass
class ParameterModel:
    """A parameter: its values, its unscaled gradient, and whether the real gradient is scaled."""

    values: list[float]
    gradient: list[float] | None = None
    kind: str = PLAIN

    def add(self, more: list[float], kind: str) -> None:
        """Accumulate a gradient."""
        if self.gradient is None:
            self.gradient, self.kind = list(more), kind
            return
        self.gradient = [a + b for a, b in zip(self.gradient, more, strict=True)]
        self.kind = self.kind if self.kind == kind else MIXED

    def finite(self) -> bool:
        """Whether all elements of the gradient are finite."""
        return all(map(math.isfinite, self.gradient or []))


@dataclass
class Optimizer:
    """SGD without momentum, and the scaler's state for it since the last update."""

    held: list[ParameterModel]
    lr: float
    stage: str = READY
    overflow: bool | None = None

    def present(self) -> list[ParameterModel]:
        """The parameters with a gradient."""
        return [one for one in self.held if one.gradient is not None]

    def step(self) -> None:
        """Take a step, without consulting the scaler."""
        for one in self.present():
            assert one.gradient is not None
            one.values = [v - self.lr * g for v, g in zip(one.values, one.gradient, strict=True)]

    def refuse(self, *kinds: str) -> None:
        """Raise Refused if a gradient is of one of these kinds."""
        if any(one.kind in kinds for one in self.present()):
            raise Refused("StateError")


@dataclass
class Model:
    """A GradScaler with two optimizers."""

    scale: float
    growth: float
    backoff: float
    interval: int
    enabled: bool
    low: float
    high: float
    hysteresis: int
    optimizers: list[Optimizer]
    tracker: int = 0
    overflows: int = 0  # since the last good step, for hysteresis
    skips: int = 0  # likewise, for ScaleCollapseError; not part of the state dict
    begun: bool = False
    asked: set[int] = field(default_factory=set)  # optimizers passed to the scaler since the last update

    def backward(self, at: int, which: int, more: list[float], scaled: bool) -> None:
        """A backward pass of a loss, scaled or not."""
        self.begun = self.begun or (scaled and self.enabled)
        self.optimizers[at].held[which].add(more, SCALED if scaled and self.enabled else PLAIN)

    def _named(self, where: str, at: int) -> Optimizer:
        if not self.begun:
            raise Refused("StateError", f"Attempted {where} but _scale is None")
        self.asked.add(at)
        optimizer = self.optimizers[at]
        present = optimizer.present()
        if optimizer.stage == UNSCALED and present and all(one.kind == SCALED for one in present):
            # Its unscaled gradients were dropped before a step, and new ones, scaled, took their place.
            optimizer.stage, optimizer.overflow = READY, None
        return optimizer

    def unscale(self, at: int) -> None:
        """`unscale_`."""
        if not self.enabled:
            return
        optimizer = self._named("unscale_", at)
        if optimizer.stage == UNSCALED:
            raise Refused("StateError", "unscale_() has already been called")
        if optimizer.stage == STEPPED:
            raise Refused("StateError", "unscale_() is being called after step()")
        self._divide(optimizer)

    def _divide(self, optimizer: Optimizer) -> None:
        optimizer.refuse(PLAIN, MIXED)
        for one in optimizer.present():
            one.kind = PLAIN
            optimizer.stage = UNSCALED
            optimizer.overflow = bool(optimizer.overflow) or not one.finite()

    def step(self, at: int) -> bool:
        """`step`; returns whether it was skipped."""
        if not self.enabled:
            self.optimizers[at].step()
            return False
        optimizer = self._named("step", at)
        if optimizer.stage == STEPPED:
            raise Refused("StateError", "step() has already been called")
        if optimizer.stage == UNSCALED:
            optimizer.refuse(SCALED, MIXED)
            optimizer.overflow = bool(optimizer.overflow) or not all(one.finite() for one in optimizer.present())
        else:
            self._divide(optimizer)
        if optimizer.overflow is None:
            raise Refused("StateError", "No inf checks were recorded for this optimizer")
        optimizer.stage = STEPPED
        if not optimizer.overflow:
            optimizer.step()
        return optimizer.overflow

    def update(self, new_scale: float | None) -> None:
        """`update`."""
        if not self.enabled:
            return
        if not self.begun:
            raise Refused("StateError", "Attempted update but _scale is None")
        found = [optimizer.overflow for optimizer in self.optimizers if optimizer.overflow is not None]
        if new_scale is not None and not self.low <= new_scale <= self.high:
            raise Refused("ArgumentError")
        if new_scale is None and not found:
            raise Refused("StateError", "No inf checks were recorded prior to update")
        for optimizer in self.optimizers:
            optimizer.stage, optimizer.overflow = READY, None
        self.asked.clear()
        if new_scale is not None:
            self.scale = new_scale
        else:
            self._move(any(found))

    def _move(self, overflow: bool) -> None:
        before = self.scale
        if overflow:
            self.tracker, self.overflows, self.skips = 0, self.overflows + 1, self.skips + 1
            if self.overflows >= self.hysteresis:
                self.scale = max(self.scale * self.backoff, self.low)
            if self.skips >= SKIPS or (self.skips >= self.hysteresis and before <= self.low):
                raise Refused("ScaleCollapseError")
            return
        self.tracker, self.overflows, self.skips = self.tracker + 1, 0, 0
        if self.tracker >= self.interval:
            self.scale, self.tracker = min(self.scale * self.growth, self.high), 0

    def clip(self, at: int, most: float) -> None:
        """`clip_grad_value_` of the gradients of an optimizer."""
        self.optimizers[at].refuse(SCALED, MIXED)
        for one in self.optimizers[at].present():
            assert one.gradient is not None
            one.gradient = [g if math.isnan(g) else min(max(g, -most), most) for g in one.gradient]

    def state(self) -> dict[str, Any]:
        """`state_dict`."""
        if not self.enabled:
            return {}
        return {
            "scale": self.scale,
            "growth_factor": self.growth,
            "backoff_factor": self.backoff,
            "growth_interval": self.interval,
            "_growth_tracker": self.tracker,
            "_hysteresis_tracker": max(self.hysteresis - self.overflows, 0),
        }

    def load(self, state: dict[str, Any]) -> None:
        """`load_state_dict`."""
        if not self.enabled:
            return
        if not state:
            raise Refused("StateError", "The source state dict is empty")
        self.scale, self.tracker = state["scale"], state["_growth_tracker"]
        self.growth, self.backoff = state["growth_factor"], state["backoff_factor"]
        self.interval = state["growth_interval"]
        self.overflows = self.hysteresis - state["_hysteresis_tracker"]

"""Overflow: which gradients are not finite, and what follows from it.

The check that a GradScaler runs over flat memory, its verdict on the device, the answer that the user may ask for, and
the guard that stops a training whose scale collapses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes, observe
from ..base.errors import ArgumentError, ScaleCollapseError
from ..core.fp_errors import ignore_fp_errors
from ..core.primitive import Primitive
from ..core.saved_state import need_count, need_like
from ..core.tensor import Tensor
from ..optim.flat.arena import Run, spans
from ..optim.flat.memory import chunks, look
from ..optim.flat.segment import Slot

SKIPS = 50  # in a row, before the guard stops: from 65536 the scale has then come down to 6e-11, where no loss needs it


def _unscale(gradient: Array, inverse: Array | None, flags: Array) -> Array:
    first = np.add(backends.backend_of(gradient).zeros((), dtypes.int64), gradient.size)
    for part in chunks(gradient.size):
        values, bad = gradient[part], flags[: part.stop - part.start]
        if inverse is not None:
            np.multiply(values, inverse, out=values)
        np.logical_not(np.isfinite(values, out=bad), out=bad)
        first = np.minimum(first, np.where(bad.any(), part.start + np.argmax(bad), gradient.size))
    return first


# (flat gradient, inverse of the scale or None, boolean scratch): times the inverse, in place; returns where the first
# value is that is not finite then, the size if there is none. One pass.
unscale = Primitive("unscale", "amp.found_inf", _unscale)

_CURE = (
    "the parameters are unharmed. If the loss itself is inf or nan, look for bad data or lower the learning rate; if "
    "only float16 overflows, train in bfloat16, or give the op that overflows float32 in the Policy"
)


class StepResult:
    """What `scaler.step` did.

    skipped: whether the gradients overflowed, so that nothing changed; reads the device when asked. value: what the
    optimizer's step returned.
    """

    __slots__ = ("_overflow", "value")

    def __init__(self, overflow: Array | None, value: Any = None):
        self._overflow, self.value = overflow, value

    @property
    def overflow(self) -> Tensor | None:
        """Whether the gradients overflowed, as a bool on the device; None without a scaler at work."""
        return None if self._overflow is None else Tensor(_array(self._overflow))

    @property
    def skipped(self) -> bool:
        return self._overflow is not None and bool(look(self._overflow))

    def __repr__(self) -> str:
        return f"StepResult(skipped={self.skipped})"


def _array(flag: Any) -> Array:
    return np.asarray(flag) if isinstance(flag, np.generic) else flag  # NumPy's operations on 0-d arrays give scalars


class Stage(Enum):
    """Where an optimizer is between two updates."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


class Verdict:
    """What is known of an optimizer's gradients since the last update; firsts: per run, its first not finite place."""

    __slots__ = ("firsts", "overflow", "stage")

    def __init__(self) -> None:
        self.stage = Stage.READY
        self.overflow: Array | None = None
        self.firsts: list[tuple[Run, Array]] = []

    def check(self, slots: list[Slot], inverse: Callable[[Run], Array] | None) -> None:
        """Unscale the gradients of `slots`, if `inverse` says by what, and note whether they are finite."""
        with ignore_fp_errors():
            for run in spans(slots):
                with backends.device_guard(run.gradient):
                    self._check(run, inverse)

    def _check(self, run: Run, inverse: Callable[[Run], Array] | None) -> None:
        if observe.profilers:
            observe.notify_start("unscale", "", run.gradient)
        first = unscale(run.gradient, inverse and inverse(run), run.block.flags())
        bad = np.less(first, len(run))
        self.overflow = (
            bad if self.overflow is None else np.logical_or(backends.to_device_of(self.overflow, run.gradient), bad)
        )
        self.firsts.append((run, first))
        if observe.observers:
            observe.notify_end("unscale", (run.gradient,), first)

    def culprits(self) -> Iterable[tuple[int, str]]:
        """The parameters known to hold a value that is not finite: number, and words for it."""
        for run, first in self.firsts:
            at = int(look(first))
            if at < len(run):
                slot = run.block.slot_at(run.start + at)
                yield slot.number, slot.where(run.start + at)


class Guard:
    """Watches the scale from the host, and stops a training that cannot go on. On a CPU it looks at once.

    On a device that runs ahead the same look comes later, at copies of what `count` is given: a step that overflows
    changes no parameter in the meantime.
    """

    def __init__(self) -> None:
        self.updates = self.skips = 0
        self.history: deque[tuple[int, float]] = deque(maxlen=8)  # (update, scale) at each change

    def state(self) -> tuple[int, int, list[tuple[int, float]]]:
        """What `restore` needs to go on: updates, skips in a row, history."""
        return self.updates, self.skips, list(self.history)

    def restore(self, state: Any) -> None:
        """Go on from a state. Raises ArgumentError, with nothing changed, for anything else."""
        where = "the guard of a GradScaler"
        if not isinstance(state, (list, tuple)) or len(state) != 3 or not isinstance(state[2], (list, tuple)):
            raise ArgumentError(where, "(updates, skips in a row, history)", repr(state)[:60])
        for entry in state[2]:
            need_like(where, "(update, scale)", entry, (0, 0.0))
        updates, skips = (need_count(where, name, n) for name, n in zip(("updates", "skips"), state, strict=False))
        self.updates, self.skips = updates, skips
        self.history = deque(((int(update), float(scale)) for update, scale in state[2]), maxlen=8)

    def count(
        self,
        verdicts: list[Verdict],
        overflow: Array,
        before: Array,
        after: Array,
        floor: float,
        hysteresis: int,
    ) -> None:
        """Count an update. Raises ScaleCollapseError after SKIPS overflows in a row, or one at the floor."""
        judge = partial(self._judge, verdicts, floor, hysteresis)
        backends.backend_of(before).call_when_ready((overflow, before, after), judge)

    def _judge(
        self, verdicts: list[Verdict], floor: float, hysteresis: int, lost: bool, was: float, now: float
    ) -> None:
        self.updates += 1
        for step, scale in ((self.updates, was), (self.updates + 1, now)):
            if not self.history or self.history[-1][1] != scale:
                self.history.append((step, scale))
        self.skips = self.skips + 1 if lost else 0
        if self.skips >= SKIPS:
            raise self._collapse(f"{self.skips} steps in a row overflowed", verdicts)
        if self.skips >= hysteresis and was <= floor:
            raise self._collapse(f"a step overflowed at the smallest scale allowed, {floor:g}", verdicts)

    def _collapse(self, what: str, verdicts: list[Verdict]) -> ScaleCollapseError:
        culprits = sorted(found for verdict in verdicts for found in verdict.culprits())
        who = f"; the first gradient that is not finite is that of {culprits[0][1]}" if culprits else ""
        past = ", ".join(f"{scale:g} (step {step})" for step, scale in self.history)
        cure = _CURE + (", or set a lower min_scale" if self.skips < SKIPS else "")
        return ScaleCollapseError(f"GradScaler: {what}{who}; scale: {past}", help=cure)

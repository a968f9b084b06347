"""ScaleMonitor: stops a training whose loss scale collapses."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from .. import backends
from ..backends import Array
from ..base.errors import ArgumentError, ScaleCollapseError
from ..core.autograd.scale_tag import NO_RANK
from ..core.saved_state import need_count, need_like
from .found_inf import FoundInf

# Overflows in a row before it raises: from 65536 the scale has then fallen to 6e-11, which no loss needs.
MAX_OVERFLOWS = 50

_CURE = (
    "the parameters are unharmed. If the loss itself is inf or nan, look for bad data or lower the learning rate; if "
    "only float16 overflows, train in bfloat16, or give the op that overflows float32 in the Policy"
)
_DEFAULT = 2.0**16
_START = (
    "the initial scale is too large, whatever the data: start with init_scale=65536, from which few steps are skipped"
)


class ScaleMonitor:
    """Follows the loss scale on the host, and raises where training cannot go on.

    On a CPU it reads the flag and the scale at once. From a device that runs asynchronously it reads copies of them
    later, without waiting; until then the flag on the device protects the parameters.
    """

    def __init__(self) -> None:
        self.updates = self.skips = 0  # all updates of the scale; the overflows in a row
        self.history: deque[tuple[int, float]] = deque(maxlen=8)  # (update, scale) at each change

    def state(self) -> tuple[int, int, list[tuple[int, float]]]:
        """What `restore` takes: updates, overflows in a row, history."""
        return self.updates, self.skips, list(self.history)

    def restore(self, state: Any) -> None:
        """Load a `state`. Raises ArgumentError, with nothing changed, for anything else."""
        where = "the guard of a GradScaler"
        if not isinstance(state, (list, tuple)) or len(state) != 3 or not isinstance(state[2], (list, tuple)):
            raise ArgumentError(where, "(updates, skips in a row, history)", repr(state)[:60])
        for entry in state[2]:
            need_like(where, "(update, scale)", entry, (0, 0.0))
        updates, skips = (need_count(where, name, n) for name, n in zip(("updates", "skips"), state, strict=False))
        self.updates, self.skips = updates, skips
        self.history = deque(((int(update), float(scale)) for update, scale in state[2]), maxlen=8)

    def record(
        self, checks: list[FoundInf], found_inf: Array, before: Array, after: Array, min_scale: float, hysteresis: int,
        nonfinite_rank: Array | None = None,
    ) -> None:  # fmt: skip
        """Record an update of the scale from `before` to `after`, 0-d arrays on the device.

        nonfinite_rank: that of the gradients' ScaleTag. Raises ScaleCollapseError after MAX_OVERFLOWS overflows in a
        row, or where one at min_scale exceeds hysteresis.
        """
        ranks = () if nonfinite_rank is None else (backends.to_device_of(nonfinite_rank, before),)
        backends.backend_of(before).call_when_ready(
            (found_inf, before, after, *ranks), partial(self._record, checks, min_scale, hysteresis)
        )

    def _record(
        self, checks: list[FoundInf], min_scale: float, hysteresis: int,
        overflow: bool, before: float, after: float, rank: int | None = None,
    ) -> None:  # fmt: skip
        self.updates += 1
        for update, scale in ((self.updates, before), (self.updates + 1, after)):
            if not self.history or self.history[-1][1] != scale:
                self.history.append((update, scale))
        self.skips = self.skips + 1 if overflow else 0
        if self.skips >= MAX_OVERFLOWS:
            raise self._collapse(f"{self.skips} steps in a row overflowed", checks, rank)
        if self.skips >= hysteresis and before <= min_scale:
            raise self._collapse(f"a step overflowed at the smallest scale allowed, {min_scale:g}", checks, rank)

    def _collapse(self, what: str, checks: list[FoundInf], rank: int | None) -> ScaleCollapseError:
        parameters = sorted(found for check in checks for found in check.nonfinite_parameters())
        who = f"; the first gradient that is not finite is that of {parameters[0][1]}" if parameters else ""
        who += "" if rank in (None, NO_RANK) else f", and the first rank with such gradients is {rank}"
        history = ", ".join(f"{scale:g} (step {update})" for update, scale in self.history)
        high = bool(self.history) and self.history[-1][1] > _DEFAULT
        cure = (_START if high else _CURE) + (", or set a lower min_scale" if self.skips < MAX_OVERFLOWS else "")
        return ScaleCollapseError(f"GradScaler: {what}{who}; scale: {history}", cure=cure)

"""Gradients that are zero because 16 bits cannot hold them: an observer that follows them to the leaves they reach."""

from __future__ import annotations

from typing import Any

from .. import backends
from ..base.dtypes import LOW
from ..base.observe import ACCUMULATE, BACKWARD, Event
from ..core.fp_errors import ignore_fp_errors
from ..core.module_path import current
from .cures import in_float64
from .finite import arrays_in
from .origin import ByIdentity, Origin, call_of, gradient_of


class UnderflowTracker:
    """An observer (see base/observe.py) that knows which kernel flushed a gradient to zero.

    faults: the origins that made the whole gradient of a leaf zero, and what is zero because of them, in that order.
    """

    def __init__(self) -> None:
        self.faults: list[tuple[Origin, str]] = []
        self.model: Any = None  # the model that was called last
        self._known = ByIdentity()

    def __call__(self, event: Event) -> None:
        """Look at an event."""
        call = current()
        model = None if call is None else call.model
        self.model = self.model if model is None else model
        with ignore_fp_errors():
            if event.phase == BACKWARD:
                self._kernel(event)
            elif event.phase == ACCUMULATE and (origin := self._known.known(event.inputs[0])) is not None:
                self.faults.append((origin, gradient_of(event.output, self.model)))

    def _kernel(self, event: Event) -> None:
        dys = [dy for dy in (event.operands if event.op is not None else event.inputs) if dy is not None]
        known = [origin for dy in dys if (origin := self._known.known(dy)) is not None]
        for output in arrays_in(event.output):
            if output.size and _is_zero(output):
                if known:
                    self._known[output] = known[0]
                elif output.dtype in LOW and not all(map(_is_zero, dys)):
                    self._look(event, output)

    def _look(self, event: Event, output: Any) -> None:
        saved = getattr(event.node, "saved", None)
        origin = Origin(event, output, call_of(event), saved=saved, model=self.model)
        wide = [array for array in in_float64(origin) if array.shape == output.shape]
        if wide and not all(map(_is_zero, wide)):
            self._known[output] = origin


def _is_zero(array: Any) -> bool:
    with backends.device_guard(array):
        return not bool(array.any())

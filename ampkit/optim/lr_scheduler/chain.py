"""ChainedScheduler: several schedules at once, whose factors are multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampkit.base.errors import ArgumentError
from ampkit.core.saved_state import need_keys

from ..optimizer import Optimizer
from .schedule import LRScheduler, load_parts


class ChainedScheduler(LRScheduler):
    """base lr times the product of the schedulers' factors, each scheduler's lr / its base lr.

    Raises ArgumentError for a scheduler that is no such factor (eta_min above 0, or one that also sets momentum), an
    empty list, and schedulers of another optimizer.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None):
        found = list(schedulers)
        if not found:
            raise ArgumentError("ChainedScheduler", "schedulers", "an empty list")
        owner = found[0].optimizer if optimizer is None else optimizer
        if any(s.optimizer is not owner for s in found):
            raise ArgumentError("ChainedScheduler", "schedulers of one optimizer", "one of another")
        floors = [
            type(s).__name__ for s in found if getattr(s, "eta_min", 0) or type(s).values is not LRScheduler.values
        ]
        if floors:
            raise ArgumentError("ChainedScheduler", "schedulers that are factors of lr", ", ".join(floors))
        self._schedulers = found
        super().__init__(owner)

    def rates(self, n: int) -> list[float]:
        found = list(self.base_lrs)
        for scheduler in self._schedulers:
            pairs = zip(scheduler.rates(n), scheduler.base_lrs, strict=True)
            factors = [rate / base if base else 0.0 for rate, base in pairs]
            found = [rate * factor for rate, factor in zip(found, factors, strict=True)]
        return found

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def _with_parts(self) -> list[LRScheduler]:
        return [self, *(each for part in self._schedulers for each in part._with_parts())]

    def _load(self, state: dict[str, Any]) -> None:
        where = "ChainedScheduler.load_state_dict"
        need_keys(where, state, ("_schedulers",))
        load_parts(where, self._schedulers, state["_schedulers"])
        super()._load(state)

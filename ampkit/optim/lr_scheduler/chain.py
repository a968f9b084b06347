"""ChainedScheduler and SequentialLR: several schedules at once, or one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any
from weakref import ref

from ampkit.base.errors import ArgumentError
from ampkit.core.saved_state import need_keys

from ..optimizer import Optimizer
from .schedule import LRScheduler


class _Combined(LRScheduler):
    _schedulers: list[LRScheduler]

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        optimizer.schedules_made -= len(self._schedulers)  # which this one replaces
        super().__init__(optimizer, last_epoch)
        for part in self._schedulers:
            part._combined_by = ref(self)

    def last_lr_of(self, part: LRScheduler) -> list[float]:
        """The learning rates that a part would have set, were it called itself; waits for the device."""
        raise NotImplementedError(f"{type(self).__name__}.last_lr_of")

    def state_dict(self) -> dict[str, Any]:
        parts = [{**part.state_dict(), **self._place_of(part)} for part in self._schedulers]
        return {**super().state_dict(), "_schedulers": parts}

    def _place_of(self, part: LRScheduler) -> dict[str, int]:
        """Where a part would be, were it called itself, as PyTorch's are."""
        raise NotImplementedError(f"{type(self).__name__}._place_of")

    def _with_parts(self) -> list[LRScheduler]:
        return [self, *(each for part in self._schedulers for each in part._with_parts())]

    def _load(self, state: dict[str, Any]) -> None:
        where, parts = f"{type(self).__name__}.load_state_dict", self._schedulers
        need_keys(where, state, ("_schedulers",))
        states = state["_schedulers"]
        if not isinstance(states, (list, tuple)) or len(states) != len(parts):
            got = f"{len(states)}" if isinstance(states, (list, tuple)) else f"a {type(states).__name__}"
            raise ArgumentError(where, f"the states of {len(parts)} schedulers", got)
        for part, each in zip(parts, states, strict=True):
            begun = {**each, "last_epoch": 0} if isinstance(each, dict) and each.get("last_epoch") == -1 else each
            part._load(begun)
        super()._load({"base_lrs": parts[0].base_lrs, "last_epoch": parts[0].last_epoch, **state})


class ChainedScheduler(_Combined):
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
        floors = [s for s in found if getattr(s, "eta_min", 0) or type(s).values is not LRScheduler.values]
        if floors:
            got = ", ".join(type(s).__name__ for s in floors)
            raise ArgumentError("ChainedScheduler", "schedulers that are factors of lr", got)
        self._schedulers = found
        super().__init__(owner)

    def rates(self, n: int) -> list[float]:
        return self._product(n, self._schedulers)

    def last_lr_of(self, part: LRScheduler) -> list[float]:
        return self._product(self.last_epoch, self._schedulers[: self._schedulers.index(part) + 1])

    def _place_of(self, part: LRScheduler) -> dict[str, int]:
        return _place(self.last_epoch)

    def _product(self, n: int, schedulers: Sequence[LRScheduler]) -> list[float]:
        found = list(self.base_lrs)
        for scheduler in schedulers:
            pairs = zip(scheduler.rates(n), scheduler.base_lrs, strict=True)
            factors = [rate / base if base else 0.0 for rate, base in pairs]
            found = [rate * factor for rate, factor in zip(found, factors, strict=True)]
        return found


class SequentialLR(_Combined):
    """Schedules one after the other: schedulers[i] starts, from its step 0, after milestones[i - 1] optimizer steps.

    Raises ArgumentError unless there is one rising milestone between every two schedulers, all of `optimizer`.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1
    ):
        if not schedulers or len(milestones) != len(schedulers) - 1 or list(milestones) != sorted(milestones):
            got = f"{len(schedulers)} schedulers, {list(milestones)}"
            raise ArgumentError("SequentialLR", "one rising milestone between every two schedulers", got)
        if any(s.optimizer is not optimizer for s in schedulers):
            raise ArgumentError("SequentialLR", "schedulers of this optimizer", "one of another")
        if len({tuple(tuple(row) for row in s.values(0)) for s in schedulers}) > 1:
            got = "some that also set momentum or betas"
            raise ArgumentError("SequentialLR", "schedulers that set the same hyperparameters", got)
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)

    def values(self, n: int) -> list[dict[str, Any]]:
        at = bisect_right(self._milestones, n)
        return self._schedulers[at].values(n - (self._milestones[at - 1] if at else 0))

    def last_lr_of(self, part: LRScheduler) -> list[float]:
        i = self._schedulers.index(part)
        begin, end = ([0, *self._milestones][i], [*self._milestones, self.last_epoch + 1][i])
        return part.rates(max(0, min(self.last_epoch, end - 1) - begin))

    def _place_of(self, part: LRScheduler) -> dict[str, int]:
        i, n = self._schedulers.index(part), self.last_epoch
        begin, end = ([0, *self._milestones][i], [*self._milestones, n + 1][i])
        return _place(min(n, end - 1) - begin if n >= begin else -1)

    def _need_constant(self, where: str, name: str, value: Any) -> None:
        super()._need_constant(where, name, value)
        if sorted(value) != list(value):
            raise ArgumentError(where, "rising _milestones", repr(value))


def _place(n: int) -> dict[str, int]:
    return {"last_epoch": n, "_step_count": n + 1 if n >= 0 else 1}

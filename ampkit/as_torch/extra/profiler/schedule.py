"""`torch.profiler.schedule`: which steps of a training a profiler records."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from ....base.errors import ArgumentError


class ProfilerAction(Enum):
    """What a schedule says of a step. Ops are timed where it is RECORD, and shown after RECORD_AND_SAVE."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """A schedule: after `skip_first` steps, in turns `wait` and `warmup` steps without a record, `active` ones with it.

    repeat: the number of turns, 0 for no end. skip_first_wait: other than 0, the first turn does not wait.
    Raises ArgumentError for numbers below 0, and for active below 1.
    """
    given = {"wait": wait, "warmup": warmup, "active": active - 1, "repeat": repeat, "skip_first": skip_first}
    for name, value in given.items():
        if value < 0:
            raise ArgumentError("schedule", f"{name} from {int(name == 'active')}", f"{value + (name == 'active')}")
    turn = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        step += (wait if skip_first_wait else 0) - skip_first
        place = step % turn
        if place < wait or (repeat and step >= repeat * turn):
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < turn - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def always(step: int) -> ProfilerAction:
    """The schedule of a profiler without one."""
    return ProfilerAction.RECORD


def is_recorded(action: Any) -> bool:
    """Whether a step with this action is recorded."""
    return action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)

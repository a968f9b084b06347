"""A trial: a step is repeated with a cure applied, from the values that it began with, and every op is looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

from ... import backends
from ...base.errors import NonFiniteError
from ...base.observe import FORWARD, START, STEP, Event, observing
from ...core.module_path import follow
from ...core.nested import tensors_in
from ..finite import is_finite
from ..nonfinite import NonFiniteTracker
from ..origin import Origin
from .constants import Constants
from .step_state import StepState

_FOLLOWING = 3  # further steps that a cure has to survive where the step updates its weights


class Cure(NamedTuple):
    """A change of a program that may help.

    text: what to do, the end of a line. apply: a context in which a step runs as if it had been done; None for what
    cannot be tried so. cause: what to add to the cause of the finding.
    """

    text: str
    apply: Callable[[], AbstractContextManager[Any]] | None = None
    cause: str = ""


class Watch:
    """A run of a step, looked at: its first fault, the constants that changed in their dtype, and its losses.

    losses: those that backward passes began with, without their loss scale. updates: of optimizers.
    """

    def __init__(self, stop: bool = False) -> None:
        self.tracker, self.constants = NonFiniteTracker(), Constants()
        self.losses: list[float] = []
        self.updates = 0
        self._stop, self._unscaled = stop, None

    def run(self, step: Callable[[], Any], *observers: Any) -> Any:
        """Call `step` and return its result; observers: others that look on."""
        with ExitStack() as stack:
            for context in (follow(separately=True), observing(self._look), *map(observing, observers)):
                stack.enter_context(context)
            return step()

    def _look(self, event: Event) -> None:
        self.constants(event)
        self.tracker(event)
        if event.name == "scale_loss" and event.phase == FORWARD:
            self._unscaled = event.inputs[0]
        elif event.phase == START and event.inputs[0].size == 1:
            loss = event.inputs[0] if self._unscaled is None else self._unscaled
            self.losses.append(_number(loss))
            self._unscaled = None
        elif event.phase == STEP and event.name.endswith("_update"):
            self.updates += 1
        if self._stop and self.tracker.faults:
            raise _FaultError


class _FaultError(Exception):
    """A trial has failed: the rest of the step need not run."""


def _number(array: Any) -> float:
    return float(backends.backend_of(array).to_numpy(array).reshape(-1)[0]) if hasattr(array, "shape") else math.nan


class Trials:
    """Repeats `step` from the values that `state` has of it."""

    def __init__(self, step: Callable[[], Any], state: StepState):
        self.step, self.state = step, state

    @contextmanager
    def leaving_no_trace(self) -> Iterator[None]:
        """Within the block the step may be repeated; afterwards all values are those of before."""
        after = self.state.now()
        try:
            yield
        finally:
            after.put_back()

    def repeats(self, origin: Origin) -> bool:
        """Whether the step, repeated as it is, fails in the same way: else a trial would show nothing."""
        watch, _ = self._from_the_start(None)
        return any(_place(found) == _place(origin) for found, _ in watch.tracker.faults[:1]) or bool(
            not watch.tracker.faults and watch.tracker.last is not None and _place(watch.tracker.last) == _place(origin)
        )

    def works(self, cure: Cure) -> bool:
        """Whether the step, and some that follow if it updates its weights, succeed with `cure`."""
        return self.failure(cure) is None

    def failure(self, cure: Cure) -> Origin | Exception | None:
        """Where the first fault comes from in spite of `cure`, or what the step raises; or None."""
        assert cure.apply is not None
        watch, failed = self._from_the_start(cure)
        losses = [*watch.losses]
        for _ in range(_FOLLOWING if watch.updates else 0):
            if failed is not None:
                break
            watch, failed = self.once(cure)
            losses += watch.losses
        if failed is None and losses and abs(losses[-1]) > 100 * max(1.0, abs(losses[0])):
            return NonFiniteError("the loss grows")
        return failed

    def _from_the_start(self, cure: Cure | None) -> tuple[Watch, Origin | Exception | None]:
        self.state.before.put_back()
        return self.once(cure, stop=cure is not None)

    def once(self, cure: Cure | None, stop: bool = True) -> tuple[Watch, Origin | Exception | None]:
        """Run the step from the present values. -> what was seen, and what failed."""
        watch = Watch(stop)
        with ExitStack() as stack:
            try:
                if cure is not None and cure.apply is not None:
                    stack.enter_context(cure.apply())
                result = watch.run(self.step)
            except _FaultError:
                return watch, watch.tracker.faults[0][0]
            except Exception as error:  # what the change makes of the program
                return watch, watch.tracker.faults[0][0] if watch.tracker.faults else error
        if watch.tracker.faults:
            return watch, watch.tracker.faults[0][0]
        bad = next((tensor for tensor in tensors_in(result) if not is_finite(tensor.array)), None)
        if bad is None:
            return watch, None
        return watch, watch.tracker.origin_of(bad.array) or NonFiniteError("the result is not finite")


def _place(origin: Origin) -> Any:
    return origin.path, origin.event.name, origin.outside


def chosen(cures: Sequence[Cure]) -> str:
    """Cures that work, in words."""
    return ", or ".join(cure.text for cure in cures)

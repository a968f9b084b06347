"""`detect_nonfinite` and `explain`: run code while every op is looked at, and say where a NaN came from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from ..autograd import anomaly_mode
from ..base.context_decorator import decorate
from ..base.errors import ArgumentError, NonFiniteError, switch
from ..base.observe import Event, observing
from ..core.module_path import current, follow
from ..core.nested import tensors_in
from ..core.tensor import Tensor
from .finding import Finding, finding_of
from .finite import is_finite
from .nonfinite import NonFiniteTracker
from .origin import Origin
from .repeat.candidates import cured
from .repeat.learning_rate import Training
from .repeat.step_state import StepState
from .repeat.trial import Trials, Watch
from .underflow import UnderflowTracker


def explain(step: Callable[[], Any], underflow: bool = False, *, repeat: bool = True) -> Finding | None:
    """Call `step()`, and say where the first infinity or NaN came from that reached a loss or a leaf's gradient.

    step: a forward, or a forward and a backward pass, with an update or without; a loss that it returns is looked at
    too. None if all is finite, or if only the loss scale is too large, which the scale search cures. underflow: say
    also, if all is finite, where the first gradient of a leaf became zero because 16 bits cannot hold it. It runs for
    real: gradients are accumulated and running statistics move. On a GPU every op waits for the device.
    repeat: where something is not finite, call `step()` again with one cure after the other applied, each time from the
    values that it began with, and name one that works. Models, optimizers, scalers, schedules, leaves and random
    streams are put back afterwards; what else the step changes, such as a data loader, is not, and a step that then
    does something else is not tried again. Nor is one on several ranks, which would have to repeat it together. Without
    `repeat` the cure is the likely one, and marked as not tried.
    Raises ArgumentError for something that cannot be called, and what `step` raises.
    """
    if not callable(step):
        raise ArgumentError("explain", "a function that runs a step", f"a {type(step).__name__}")
    zeros = UnderflowTracker() if switch("explain", "underflow", underflow) else None
    return explained(step, zeros, switch("explain", "repeat", repeat))


def explained(
    step: Callable[[], Any],
    zeros: UnderflowTracker | None = None,
    repeat: bool = True,
    training: Training | None = None,
) -> Finding | None:
    """`explain`, with a way to train from the beginning: see `candidates.cured`."""
    state = StepState(step) if repeat and not _among_others() else None
    watch, found = Watch(), list[tuple[Finding, Origin]]()

    def look(event: Event) -> None:
        if watch.tracker.faults and not found:  # at once: later the step may change what led to it
            found.append((finding_of(*watch.tracker.faults[0]), watch.tracker.faults[0][0]))

    observers = [observer for observer in (look, zeros, state and state.see) if observer is not None]
    result: Any = None
    try:
        result = watch.run(step, *observers)
    except NonFiniteError:  # the step's own check, of what was seen already
        if not found:
            raise
    found += filter(None, [_of_result(tensor, watch.tracker) for tensor in tensors_in(result)])
    if zeros is not None and zeros.faults and not found:
        return finding_of(*zeros.faults[0], kind="underflow")
    if not found:
        return None
    finding, origin = found[0]
    return finding if state is None else cured(finding, origin, Trials(step, state), watch, training)


def _among_others() -> bool:
    """Whether this is one of several ranks: each would try other cures, with collectives that the rest do not call."""
    from ..distributed.world import group

    return group.WORLD is not None and group.WORLD.size() > 1


def _of_result(tensor: Tensor, tracker: NonFiniteTracker) -> tuple[Finding, Origin] | None:
    if is_finite(tensor.array):
        return None
    outside = Origin(_NO_EVENT, tensor.array, current(), outside="what code outside of ops computed")
    origin = tracker.origin_of(tensor.array) or outside
    return finding_of(origin, "the loss" if tensor.array.size == 1 else "the result"), origin


_NO_EVENT = Event("", (), (), "forward")


class detect_nonfinite:
    """Within the block, raise NonFiniteError as soon as infinity or NaN reaches a loss or the gradient of a leaf.

    The error says which op in which module made it, forward or backward, of what, and how to cure it; `error.finding`
    is the same as a Finding. Infinity that reaches neither, such as that of a mask, raises nothing, and neither does a
    gradient that overflows by the loss scale alone, which the scale search cures; overflows counts those. On a GPU
    every op waits for the device. Also a decorator.
    """

    def __init__(self) -> None:
        self.overflows = 0

    def __enter__(self) -> Self:
        self._tracker, self._stack = NonFiniteTracker(), ExitStack()
        self._stack.enter_context(follow(separately=True))
        self._stack.enter_context(observing(self._look))
        return self

    def close(self) -> None:
        """Look at no more ops, and forget those that were seen."""
        self._stack.close()
        self._tracker = NonFiniteTracker()

    def __exit__(self, *error: object) -> None:
        last = self._tracker.last
        self.close()
        if last is not None and not any(error) and not (last.is_mask or last.by_scale):
            raise error_of(finding_of(last, "the result of the block"))

    def _look(self, event: Event) -> None:
        self._tracker(event)
        self.overflows = self._tracker.overflows
        if self._tracker.faults:
            faults, self._tracker.faults = self._tracker.faults, []
            raise error_of(finding_of(*faults[0]))

    def __call__(self, function: Any) -> Any:
        return decorate(lambda: type(self)(), function, "detect_nonfinite()(function)")


def error_of(finding: Finding) -> NonFiniteError:
    """The error that says what a finding says; `finding` is one of its attributes."""
    error = NonFiniteError(finding.account, cure=finding.advice)
    error.finding = finding
    return error


def _start() -> Callable[[], None]:
    # For `autograd.detect_anomaly`, which looks at what a backward starts from and arrives at.
    tracker = detect_nonfinite()
    tracker.__enter__()
    return tracker.close


anomaly_mode.detectors.append(_start)

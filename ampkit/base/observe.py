"""Observers and profilers of the kernels that run. Without any, a kernel pays one test of an empty list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .array_kinds import on_device


class Event(NamedTuple):
    """A kernel that has run, or a point that a backward pass has reached.

    name: the op's; `<op>_backward` for a backward, `cast` for a cast of an operand or of a gradient, `sum_over` for the
    sum of a gradient over broadcast axes, `sum_of_two` for the sum of two gradients of a tensor, `scale_loss`,
    `unscale`, `<optimizer>_update`. inputs, output: the arrays it read and wrote, in the dtypes they are stored in.
    phase: FORWARD, BACKWARD or STEP (the optimizer's part of a training step), or a point of a backward pass: START
    (inputs: the array it starts from; output: its gradient), ACCUMULATE (inputs: a gradient; output: the leaf it
    reached), RETURN (inputs: a gradient that `grad` returns; output: the tensor it is of), HOOK (inputs: a gradient;
    output: what a hook replaced it by; operands: the leaf, if it is one's) or REPLAY (under create_graph, the backward
    of a node whose ops were events of their own; inputs: the gradients of its outputs). op: the Op. operands: in a
    forward, the Tensors, numbers and None that it was called with; in a backward, the gradient of each output or None,
    which are the first of the inputs, before what was saved. params: its other arguments. node: what a forward
    recorded, None off the tape; in a backward, the node visited. tag: in a backward, the loss scale of its gradients,
    if any. A call of an autograd.Function has no op, and follows the events of the ops in it.
    """

    name: str
    inputs: tuple[Any, ...]
    output: Any
    phase: str
    op: Any = None
    operands: tuple[Any, ...] = ()
    params: Any = ()
    plan: Any = None
    kernel: Any = None
    node: Any = None
    tag: Any = None


FORWARD, BACKWARD, STEP = "forward", "backward", "step"
START, ACCUMULATE, RETURN, HOOK, REPLAY = "start", "accumulate", "return", "hook", "replay"

Observer = Callable[[Event], None]

observers: list[Observer] = []  # called after every kernel
profilers: list[Any] = []  # also told when a kernel starts (see ampkit/debug/profiler.py)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Within the block, call `observer(event)` after every kernel, accumulation and hook."""
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)


@contextmanager
def watch(callback: Callable[[str, tuple[Any, ...], Any], None]) -> Iterator[None]:
    """Within the block, call `callback(name, inputs, output)` after every kernel, with the arrays it read and wrote.

    `name` is the op's name, `<op>_backward` for a backward, and `cast` for a cast of an operand or of a gradient.
    The arrays are the ones in use: a callback must not write to them.
    """

    def observer(event: Event) -> None:
        if event.phase in (FORWARD, BACKWARD, STEP):
            callback(event.name, event.inputs, event.output)

    with observing(observer):
        yield


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Within the block, profilers show the time as `name`: the host's, in which no kernel need run."""
    for profiler in tuple(profilers):
        profiler.kernel_started(name, "", None)
    try:
        yield
    finally:
        for profiler in tuple(profilers):
            profiler.kernel_ended(Event(name, (), None, STEP))


def notify_start(name: str, kernel: str, array: Any) -> None:
    """Tell every profiler that `kernel`, one of the op `name`, starts on the device of `array`."""
    for profiler in tuple(profilers):
        profiler.kernel_started(name, kernel, array)


def notify_end(name: str, inputs: tuple[Any, ...], output: Any, phase: str, **details: Any) -> None:
    """Tell every observer that a kernel of the op `name` read `inputs` and wrote `output`; details: fields of Event.

    Of arrays of a `vmap` they see those of the whole batch.
    """
    output = tuple(map(on_device, output)) if type(output) is tuple else on_device(output)
    event = Event(name, tuple(map(on_device, inputs)), output, phase, **details)
    for observer in tuple(observers):
        observer(event)

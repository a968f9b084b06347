"""Observers and profilers of the kernels that run. Without any, a kernel pays one test of an empty list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Observer = Callable[[str, tuple[Any, ...], Any], None]

observers: list[Observer] = []  # called after every kernel
profilers: list[Any] = []  # also told when a kernel starts (see ampkit/profiler.py)


@contextmanager
def watch(callback: Observer) -> Iterator[None]:
    """Within the block, call `callback(name, inputs, output)` after every kernel, with the arrays it read and wrote.

    `name` is the op's name, `<op>_backward` for a backward, and `cast` for a cast that a policy asked for.
    The arrays are the ones in use: a callback must not write to them.
    """
    observers.append(callback)
    try:
        yield
    finally:
        observers.remove(callback)


def notify_start(name: str, kernel: str, array: Any) -> None:
    """Tell every profiler that `kernel`, one of the op `name`, starts on the device of `array`."""
    for profiler in tuple(profilers):
        profiler.kernel_started(name, kernel, array)


def notify_end(name: str, inputs: tuple[Any, ...], output: Any) -> None:
    """Tell every observer that a kernel of the op `name` read `inputs` and wrote `output`."""
    for callback in tuple(observers):
        callback(name, inputs, output)

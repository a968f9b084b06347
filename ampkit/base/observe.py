"""Observers: callbacks around every kernel that runs. While nobody watches they cost one look at an empty list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Observer = Callable[[str, tuple[Any, ...], Any], None]

active: list[Observer] = []
watches: list[Any] = []  # profilers, told also when a kernel begins (see ampkit/profiler.py)


@contextmanager
def watch(callback: Observer) -> Iterator[None]:
    """Within the block, call `callback(name, inputs, output)` after every kernel, with the arrays it read and wrote.

    `name` is the op's name, `<op>_backward` for a backward, and `cast` for a cast that a policy asked for.
    The arrays are the ones in use: look, don't write.
    """
    active.append(callback)
    try:
        yield
    finally:
        active.remove(callback)


def begin(name: str, kernel: str, array: Any) -> None:
    """Tell every profiler that `kernel`, of what will be reported as `name`, begins on the device of `array`."""
    for profiler in tuple(watches):
        profiler.begin(name, kernel, array)


def report(name: str, inputs: tuple[Any, ...], output: Any) -> None:
    """Tell every observer that the kernel `name` read `inputs` and wrote `output`."""
    for callback in tuple(active):
        callback(name, inputs, output)

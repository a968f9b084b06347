"""How far long work has come, told to whoever listens: the command line does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, int, int], None]

_listeners: list[Listener] = []


def advanced(what: str, done: int, total: int) -> None:
    """Tell every listener that `done` of `total` parts of the work `what` are done."""
    for listener in tuple(_listeners):
        listener(what, done, total)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the block, call `listener(what, done, total)` whenever long work advances."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)

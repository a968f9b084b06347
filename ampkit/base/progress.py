"""How far long work has come, told to whoever listens, and what displays a training: the command line does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, int, int], None]

_listeners: list[Listener] = []
_displays: list[Callable[[Any], Iterable[Any]]] = []


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


def register_display(display: Callable[[Any], Iterable[Any]]) -> None:
    """Make display(training) what iterates over a training and shows its rows."""
    _displays.append(display)


def displayed(training: Any) -> Iterable[Any]:
    """`training`, an iterable of rows, with each row shown by the display that was registered last, if any was."""
    return _displays[-1](training) if _displays else training

"""Signals that end a training after the current step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a scheduler, a terminal that was closed


class Ended(KeyboardInterrupt):
    """A signal that ends the program at once; status: the exit status that shells report for it."""

    def __init__(self, number: int):
        super().__init__(number)
        self.status = 128 + number


class Signals:
    """Inside its `with` block the first signal calls `stop` if that is set, and the next one raises Ended.

    Without `stop` the first one raises. A signal that the process was started to ignore, as `nohup` does with SIGHUP,
    stays ignored. Outside the main thread, which alone receives signals, nothing changes.
    """

    def __init__(self) -> None:
        self.stop: Callable[[], None] | None = None
        self.status = 128 + signal.SIGINT
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.status, stop, self.stop = 128 + number, self.stop, None
        if stop is None:
            raise Ended(number)
        stop()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

"""Signals that ask a run to end: Ctrl-C, SIGTERM of a scheduler, SIGHUP of a terminal that was closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """A signal that ends what runs at once; status: the exit status that shells give for it."""

    def __init__(self, number: int):
        super().__init__(number)
        self.status = 128 + number


class Signals:
    """Within its `with` block the first such signal calls `stop`, if that is set, and the next one raises Ended.

    Without `stop` the first one raises. A signal that the process was started to ignore, as `nohup` does with SIGHUP,
    stays ignored. Outside the main thread, which alone gets signals, nothing changes.
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
            heard = [number for number in _ASKING if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

"""Threads that run functions for others, and end with the process whatever they do.

Those of concurrent.futures would keep a process from its end while a function for another one runs.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from ...backends.threads import on_this_device

Task = tuple[Callable[..., Any], tuple[Any, ...]]


class Threads:
    """At most `most` threads, each made when none is idle."""

    def __init__(self, most: int, name: str):
        self._most, self._name = most, name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock, self._count, self._busy = Lock(), 0, 0

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Call function(*args), which raises nothing, in one of them, after what was submitted before."""
        with self._lock:
            self._busy += 1  # tasks that wait or run
            grows = self._busy > self._count and self._count < self._most
            self._count += grows
        self._tasks.put((function, args))
        if grows:
            Thread(target=on_this_device(self._run), name=self._name, daemon=True).start()

    def close(self) -> None:
        """Let each end after what it runs."""
        for _ in range(self._count):
            self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            function, args = task
            function(*args)
            del task, function, args  # what they refer to goes now
            with self._lock:
                self._busy -= 1

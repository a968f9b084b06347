"""Staging: host arrays on their way to the device, through pinned memory, on a stream of their own.

The copy of the next batch runs beside the work on this one. It waits for the work that was queued when it was asked
for: whoever gave memory of the staging stream back by then can still be read from, and it may be that memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any  # a CuPy array


class Staging:
    """The way to one device. xp: CuPy, or what stands for it. empty: makes an array of a shape and a dtype there."""

    def __init__(self, xp: Any, index: int, empty: Callable[..., Array]):
        self.xp, self.index, self.empty = xp, index, empty
        self._stream: Any = None
        self._busy: deque[tuple[Any, Any]] = deque()  # (event, pinned memory that is read until then)

    def bring(self, arrays: Sequence[np.ndarray[Any, Any]]) -> Callable[[], list[Array]]:
        """Start to copy host arrays. -> what gives the device's, to work on in the stream that is then current."""
        with self.xp.cuda.Device(self.index):
            if self._stream is None:
                self._stream = self.xp.cuda.Stream(non_blocking=True)
            while self._busy and self._busy[0][0].done:
                self._busy.popleft()
            self._stream.wait_event(self.xp.cuda.get_current_stream().record())
            with self._stream:
                made = [self._copied(array) for array in arrays]
            copied = self._stream.record()
        self._busy.extend((copied, pinned) for _, pinned in made)
        return lambda: self._ready(copied, [array for array, _ in made])

    def _copied(self, array: np.ndarray[Any, Any]) -> tuple[Array, Any]:
        pinned = self.xp.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        room = np.frombuffer(pinned, array.dtype, array.size).reshape(array.shape)
        room[...] = array
        there = self.empty(array.shape, array.dtype)
        there.set(room, stream=self._stream)
        return there, pinned

    def _ready(self, copied: Any, arrays: list[Array]) -> list[Array]:
        with self.xp.cuda.Device(self.index):
            self.xp.cuda.get_current_stream().wait_event(copied)
        return arrays

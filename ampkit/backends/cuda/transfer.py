"""Asynchronous copies of host arrays to the device, through pinned memory, on a stream of their own.

The copy of the next batch overlaps with the work on this one. It waits for the work queued before it, because memory
that the pool reuses for it may still be read by that work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampkit.base.dtypes import Array


class Staging:
    """Copies to one device. xp: CuPy, or its emulation. empty: allocates an array of a shape and a dtype there."""

    def __init__(self, xp: Any, index: int, empty: Callable[..., Array]):
        self.xp, self.index, self.empty = xp, index, empty
        self._stream: Any = None
        self._busy: deque[tuple[Any, Any]] = deque()  # (event, pinned memory in use until it)

    def bring(self, arrays: Sequence[np.ndarray[Any, Any]]) -> Callable[[], list[Array]]:
        """Start to copy host arrays. Returns a function: the current stream waits for the copies, which it returns."""
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
        buffer = np.frombuffer(pinned, array.dtype, array.size).reshape(array.shape)
        buffer[...] = array
        there = self.empty(array.shape, array.dtype)
        there.set(buffer, stream=self._stream)
        return there, pinned

    def _ready(self, copied: Any, arrays: list[Array]) -> list[Array]:
        with self.xp.cuda.Device(self.index):
            self.xp.cuda.get_current_stream().wait_event(copied)
        return arrays

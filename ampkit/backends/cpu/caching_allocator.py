"""A caching allocator for large arrays: a freed buffer serves the next array of its size.

A training step allocates and frees the same arrays over and over. What the C library returned to the system in between
would come back as pages that the system has to fill with zeros.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from threading import RLock
from typing import Any

import numpy as np

from ampkit.base.dtypes import DType

from . import cpuinfo

HostArray = np.ndarray[Any, Any]

# Smaller arrays come from the C library, which maps no memory of its own for them (128 KiB is glibc's M_MMAP_THRESHOLD)
# and is faster than this allocator.
MIN_BYTES = 1 << 17
_PAGE = 1 << 12  # sizes are rounded up to whole pages
CACHE_LINE = 64  # bytes; large arrays begin on a boundary of it
# Bytes of an array from which it is aligned. AMX reads tiles of 64-byte rows, which are much slower where they
# straddle two lines; vector loads lose less by it than aligning a small array takes.
_ALIGNED = _PAGE if "amx_tile" in cpuinfo.flags() else MIN_BYTES
_Pointer = ctypes.c_void_p
DATA_OFFSET = 2 * ctypes.sizeof(_Pointer)  # of the address of the data in NumPy's array object, in CPython


def _address_by_interface(array: HostArray) -> int:
    return int(array.__array_interface__["data"][0])


def _address_by_struct(array: HostArray) -> int:
    # NumPy's C struct begins with the object header, two words, and the data pointer: eight times as fast to read.
    return _Pointer.from_address(id(array) + DATA_OFFSET).value or 0


_sample = np.zeros(8)
HAS_STRUCT = sys.implementation.name == "cpython" and _address_by_struct(_sample) == _address_by_interface(_sample)
address = _address_by_struct if HAS_STRUCT else _address_by_interface  # of an array's first element


class _Buffer(np.ndarray[Any, Any]):
    """A pooled uint8 buffer. A class of its own, so that `view.base` of an array stops at its lease."""

    __slots__ = ()


class _Zeros(_Buffer):
    """A buffer of zeros, which the system made: it is counted, and not pooled."""

    __slots__ = ()


class _Lease(np.ndarray[Any, Any]):
    """A view of a buffer in use, the base of an array and of all its views. When the last of them dies, so does it."""

    __slots__ = ()

    def __del__(self) -> None:
        buffer = self.base
        if _allocator is not None and isinstance(buffer, _Buffer):  # the module is gone at interpreter shutdown
            _allocator.release(buffer)


class CachingAllocator:
    """Free buffers by size; safe for threads.

    In bytes: used and cached, and peak, the most that was used since `reset_peak`. used + cached stays within 1.25
    times the most that was used lately, in the last `window` to twice as many allocations: a step of a training finds
    all that the one before it freed, and a program that needs less than before gives the rest back. Where a freed
    buffer exceeds that, buffers of the sizes that were asked for least lately go.
    """

    def __init__(self, window: int = 4096) -> None:
        self.free_lists: dict[int, list[HostArray]] = {}  # the size that was used last is the last one
        self.used = self.cached = self.peak = 0
        self.window, self._allocations = window, 0
        self._most = self._most_before = 0  # that was used in this window of allocations, and in the one before
        self.lock = RLock()  # that may be taken again: finalizers free and allocate in the middle of both
        self._released: deque[_Buffer] = deque()
        self._releasing = False

    def allocate(self, nbytes: int) -> _Lease:
        """Return uint8 memory of at least `nbytes`, aligned to CACHE_LINE, released with its last reference."""
        size = -(-nbytes // _PAGE) * _PAGE
        with self.lock:
            free = self.free_lists.get(size)
            buffer = free.pop() if free else None
            if buffer is None:
                buffer = _aligned(_Buffer((size + CACHE_LINE,), np.uint8), size)
            else:
                self.cached -= size
            self._count(size)
        return buffer.view(_Lease)

    def zeros(self, nbytes: int) -> _Lease:
        """`allocate`, of zeros: the system fills the pages when they are first touched."""
        size = -(-nbytes // _PAGE) * _PAGE
        buffer = _aligned(np.zeros(size + CACHE_LINE, np.uint8).view(_Zeros), size)
        with self.lock:
            self._count(size)
        return buffer.view(_Lease)

    def _count(self, size: int) -> None:
        self.used = used = self.used + size
        if used > self.peak:
            self.peak = used
        if used > self._most:
            self._most = used
        self._allocations += 1
        if self._allocations == self.window:  # what is then too much, the next release frees
            self._most, self._most_before, self._allocations = self.used, self._most, 0

    def release(self, buffer: _Buffer) -> None:
        """Count a buffer as free, and keep one that is pooled for reuse.

        One that is released in the middle of a release waits for its end: the free lists change in one call at a time.
        """
        with self.lock:
            self._released.append(buffer)
            while self._released and not self._releasing:
                self._releasing = True
                try:
                    while self._released:
                        self._keep(self._released.popleft())
                finally:
                    self._releasing = False

    def _keep(self, buffer: _Buffer) -> None:
        size = buffer.nbytes
        self.used -= size
        if type(buffer) is _Buffer:
            free = self.free_lists.pop(size, None)
            if free is None:
                free = []
            free.append(buffer)
            self.free_lists[size] = free
            self.cached += size
            if 4 * (self.used + self.cached) > 5 * self._most:
                self._trim()

    def _trim(self) -> None:
        limit = 5 * max(self._most, self._most_before)
        while 4 * (self.used + self.cached) > limit and self.free_lists:
            size = next(iter(self.free_lists))
            free = self.free_lists[size]
            dropped = free.pop() if free else None
            if dropped is not None:
                self.cached -= size
            if not free:
                del self.free_lists[size]

    def reset_peak(self) -> None:
        """Make the present use the peak."""
        with self.lock:
            self.peak = self.used

    @contextmanager
    def measured(self) -> Iterator[list[int]]:
        """A list that has, after the block, the most bytes that were used within it; `peak` goes on as it was."""
        found: list[int] = []
        with self.lock:
            before, self.peak = self.peak, self.used
        try:
            yield found
        finally:
            with self.lock:
                found.append(self.peak)
                self.peak = max(before, self.peak)

    def clear(self) -> None:
        """Free every cached buffer."""
        with self.lock:
            self.free_lists.clear()
            self.cached = 0


def _aligned(raw: HostArray, size: int) -> HostArray:
    start = -address(raw) % CACHE_LINE
    return raw[start : start + size]


_allocator = CachingAllocator()


def _unlock() -> None:
    _allocator.lock, _allocator._releasing = RLock(), False  # another thread may have held it at the fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def allocator() -> CachingAllocator:
    """The allocator of the process."""
    return _allocator


def empty(shape: Sequence[int], dtype: DType) -> HostArray:
    """An uninitialized C-contiguous array, aligned to CACHE_LINE unless it is small."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < _ALIGNED:
        return np.empty(shape, dtype)
    if nbytes >= MIN_BYTES:
        return np.ndarray(tuple(shape), dtype, _allocator.allocate(nbytes))
    raw = np.empty(nbytes + CACHE_LINE, np.uint8)
    return np.ndarray(tuple(shape), dtype, raw, -address(raw) % CACHE_LINE)


def zeros(shape: Sequence[int], dtype: DType) -> HostArray:
    """A C-contiguous array of zeros, aligned to CACHE_LINE; the system fills its pages when they are first touched."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes >= MIN_BYTES:
        return np.ndarray(tuple(shape), dtype, _allocator.zeros(nbytes))
    raw = np.zeros(nbytes + CACHE_LINE, np.uint8)
    return np.ndarray(tuple(shape), dtype, raw, -address(raw) % CACHE_LINE)

"""A caching allocator for large arrays: a freed buffer serves the next array of its size.

A training step allocates and frees the same arrays over and over. What the C library returned to the system in between
would come back as pages that the system has to fill with zeros.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from math import prod
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


class _Lease(np.ndarray[Any, Any]):
    """A view of a buffer in use, the base of an array and of all its views. When the last of them dies, so does it."""

    __slots__ = ()

    def __del__(self) -> None:
        if _allocator is not None and type(self.base) is _Buffer:  # the module is gone at interpreter shutdown
            _allocator.release(self.base)


class CachingAllocator:
    """Free buffers by size. In bytes: used, cached and peak use; used + cached stays within 1.25 times the peak."""

    def __init__(self) -> None:
        self.free_lists: dict[int, list[_Buffer]] = {}
        self.used = self.cached = self.peak = 0

    def allocate(self, nbytes: int) -> _Lease:
        """Return uint8 memory of at least `nbytes`, aligned to CACHE_LINE, released with its last reference."""
        size = -(-nbytes // _PAGE) * _PAGE
        free = self.free_lists.get(size)
        if free:
            buffer: HostArray = free.pop()
            self.cached -= size
        else:
            raw = _Buffer((size + CACHE_LINE,), np.uint8)
            start = -address(raw) % CACHE_LINE
            buffer = raw[start : start + size]
        self.used += size
        self.peak = max(self.peak, self.used)
        return buffer.view(_Lease)

    def release(self, buffer: _Buffer) -> None:
        """Keep a buffer for reuse, or free it where the cache is full."""
        size = buffer.nbytes
        self.used -= size
        if 4 * (self.used + self.cached + size) <= 5 * self.peak:
            self.free_lists.setdefault(size, []).append(buffer)
            self.cached += size

    def clear(self) -> None:
        """Free every cached buffer and reset the peak to the present use."""
        self.free_lists.clear()
        self.cached, self.peak = 0, self.used


_allocator = CachingAllocator()


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
    raw = np.zeros(prod(shape) * dtype.itemsize + CACHE_LINE, np.uint8)
    return np.ndarray(tuple(shape), dtype, raw, -address(raw) % CACHE_LINE)

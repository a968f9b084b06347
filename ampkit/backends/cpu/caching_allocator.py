"""rooms: memory that large arrays leave behind, kept for the next ones of the same size.

A training step makes and drops the same arrays over and over. What the C library gives back to the system in between
comes again as pages that the system has to fill with zeros.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ampkit.base.dtypes import DType

HostArray = np.ndarray[Any, Any]

LEAST = 1 << 16  # bytes; smaller arrays cost the C library nothing
_GRAIN = 1 << 12  # sizes are rounded up to whole pages
LINE = 64  # bytes of a cache line, on whose boundary arrays begin
_Word = ctypes.c_void_p
_HEAD = 2 * ctypes.sizeof(_Word)


def _documented(array: HostArray) -> int:
    return int(array.__array_interface__["data"][0])


def _direct(array: HostArray) -> int:
    # NumPy's C struct begins with Python's head, two words, and the address of the data: an eighth of the other's time.
    return _Word.from_address(id(array) + _HEAD).value or 0


_sample = np.zeros(8)
# Of an array: where its first element lies.
address = _direct if sys.implementation.name == "cpython" and _direct(_sample) == _documented(_sample) else _documented


class _House(np.ndarray[Any, Any]):
    """Memory that is kept, one byte an element; of a class of its own, or views would refer past their room to it."""

    __slots__ = ()


class _Room(np.ndarray[Any, Any]):
    """A house while it is in use: what an array and all its views refer to. When the last of them goes, so does it."""

    __slots__ = ()

    def __del__(self) -> None:
        if _rooms is not None and type(self.base) is _House:  # there are no rooms any more when Python ends
            _rooms.leave(self.base)


class Rooms:
    """Free memory by size; with what is in use no more than 5/4 of the most that was. In bytes: used, free, most."""

    def __init__(self) -> None:
        self.kept: dict[int, list[_House]] = {}
        self.used = self.free = self.most = 0

    def take(self, nbytes: int) -> _Room:
        """Memory for `nbytes`, one byte an element, on a boundary of LINE bytes, until nothing refers to it."""
        size = -(-nbytes // _GRAIN) * _GRAIN
        kept = self.kept.get(size)
        if kept:
            home: HostArray = kept.pop()
            self.free -= size
        else:
            raw = _House((size + LINE,), np.uint8)
            start = -address(raw) % LINE
            home = raw[start : start + size]
        self.used += size
        self.most = max(self.most, self.used)
        return home.view(_Room)

    def leave(self, home: _House) -> None:
        """Keep memory that nobody uses any more, or give it back."""
        size = home.nbytes
        self.used -= size
        if 4 * (self.used + self.free + size) <= 5 * self.most:
            self.kept.setdefault(size, []).append(home)
            self.free += size

    def clear(self) -> None:
        """Give back all that is free."""
        self.kept.clear()
        self.free, self.most = 0, self.used


_rooms = Rooms()


def empty(shape: Sequence[int], dtype: DType) -> HostArray:
    """An array whose elements are still to be written, on a boundary of LINE bytes.

    Vectors and tiles that straddle cache lines take longer to load.
    """
    nbytes = prod(shape) * dtype.itemsize
    if nbytes >= LEAST:
        return np.ndarray(tuple(shape), dtype, _rooms.take(nbytes))
    raw = np.empty(nbytes + LINE, np.uint8)
    return np.ndarray(tuple(shape), dtype, raw, -address(raw) % LINE)


def zeros(shape: Sequence[int], dtype: DType) -> HostArray:
    """An array of zeros on such a boundary, whose pages the system makes when they are first met."""
    raw = np.zeros(prod(shape) * dtype.itemsize + LINE, np.uint8)
    return np.ndarray(tuple(shape), dtype, raw, -address(raw) % LINE)

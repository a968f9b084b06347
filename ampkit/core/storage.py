"""The memory that a tensor and its views share, by PyTorch's name, for libraries that compare tensors by it."""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array, Device
from ..base import public_dtypes
from ..base.dtypes import uint8
from ..base.errors import FileError

_parts: dict[int, tuple[Any, list[int], list[int]]] = {}  # by an array's id: itself, the first and last bytes of parts


class UntypedStorage:
    """Bytes in memory: those of a tensor (`Tensor.untyped_storage()`) or of a file.

    Two tensors have the same `data_ptr()` and `nbytes()` here if one is a view of the other, or both are views of one
    tensor. A parameter in an optimizer's arena has its segment alone.
    """

    def __init__(self, array: Array, exposed: Callable[[], Any] | None = None):
        self._array = array
        self._exposed = exposed  # notes that other code may write to the memory

    @classmethod
    def from_file(cls, filename: str | os.PathLike[str], shared: bool = False, nbytes: int = 0) -> UntypedStorage:
        """The first `nbytes` bytes of a file, mapped into memory; changes reach the file only if `shared`.

        Raises FileError for a file that cannot be read or is shorter.
        """
        try:
            return cls(np.memmap(filename, np.uint8, "r+" if shared else "c", shape=(nbytes,)))
        except (OSError, ValueError) as error:
            raise FileError(f"UntypedStorage: {os.fspath(filename)}", f"a file of {nbytes} bytes", str(error)) from None

    @property
    def device(self) -> Device:
        """The device of the memory."""
        return Device(backends.backend_of(self._array).device_of(self._array))

    @property
    def dtype(self) -> public_dtypes.dtype:
        """uint8."""
        return public_dtypes.uint8

    @property
    def shape(self) -> tuple[int]:
        """The number of bytes, as the shape of an array."""
        return (self.nbytes(),)

    def data_ptr(self) -> int:
        """The address of the first byte; 0 without elements."""
        return address(self._array)

    def nbytes(self) -> int:
        """The number of bytes."""
        return int(self._array.nbytes)

    size = __len__ = nbytes

    def untyped(self) -> UntypedStorage:
        """Itself."""
        return self

    def __getitem__(self, index: slice) -> UntypedStorage:
        return UntypedStorage(self._array.reshape(-1).view(np.uint8)[index], self._exposed)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if self._exposed is not None and not copy:
            self._exposed()
        return np.array(self._array.reshape(-1).view(np.uint8), dtype=dtype, copy=copy)


def of_array(array: Array, exposed: Callable[[], Any] | None = None) -> UntypedStorage:
    """The storage of the array that `array` is a view of, at last; bytes below that are the allocator's.

    Of memory that was divided, the part in which the first element of `array` lies.
    """
    owner, start = _owner(array), address(array)
    if id(owner) in _parts and start:
        _, starts, stops = _parts[id(owner)]
        at = bisect_right(starts, start - address(owner)) - 1
        return UntypedStorage(owner.reshape(-1).view(np.uint8)[starts[at] : stops[at]], exposed)
    while type(array.base) is type(array) and array.base.dtype == array.dtype != uint8:
        array = array.base
    return UntypedStorage(array, exposed)


def divide(parts: Sequence[Array]) -> None:
    """Make arrays, which lie in one memory in ascending order, storages of their own, for as long as the memory is."""
    owner = _owner(parts[0])
    key = id(owner)
    parts = [part for part in parts if part.size]
    starts = [address(part) - address(owner) for part in parts]
    stops = [start + int(part.nbytes) for start, part in zip(starts, parts, strict=True)]
    _parts[key] = weakref.ref(owner, lambda _: _parts.pop(key, None)), starts, stops


def _owner(array: Array) -> Array:
    while type(array.base) is type(array):
        array = array.base
    return array


def address(array: Array) -> int:
    """The address of an array's first element in memory, on its device; 0 without elements."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr) if array.size else 0


def overlapping(arrays: Sequence[Array]) -> list[bool]:
    """For each array, whether its memory overlaps with that of another."""
    reach = [_bounds(array) for array in arrays]
    order = sorted(range(len(arrays)), key=reach.__getitem__)
    found = [False] * len(arrays)
    widest = order[0] if order else 0  # the one that ends last so far
    for at in order[1:]:
        if reach[at][0] < reach[widest][1] and reach[at][0] < reach[at][1]:
            found[at] = found[widest] = True
        widest = max(widest, at, key=lambda i: reach[i][1])
    return found


def _bounds(array: Array) -> tuple[int, int]:
    # The addresses of an array's first byte, and of the byte behind its last one.
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True) if n]
    first = address(array) + sum(step for step in steps if step < 0)
    return first, first + sum(map(abs, steps)) + array.itemsize if array.size else first

"""The memory that a tensor and its views share, by PyTorch's name, for libraries that compare tensors by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array, Device
from ..base import public_dtypes
from ..base.dtypes import uint8
from ..base.errors import FileError


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
    """The storage of the array that `array` is a view of, at last; bytes below that are the allocator's."""
    while type(array.base) is type(array) and array.base.dtype == array.dtype != uint8:
        array = array.base
    return UntypedStorage(array, exposed)


def address(array: Array) -> int:
    """The address of an array's first element in memory, on its device; 0 without elements."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr) if array.size else 0


def overlapping(arrays: Sequence[Array]) -> list[bool]:
    """Of each array, whether its memory overlaps with that of another."""
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

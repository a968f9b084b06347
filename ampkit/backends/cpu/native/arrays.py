"""Calls of compiled kernels with NumPy arrays: the typed layer between Python and the C functions.

    _softmax = Function("softmax_forward", "aai")       # void softmax_forward(Array, Array, int64)
    _softmax(out, rows, 0)

An array is passed as its address, dtype, and the sizes and strides of up to three axes. Nothing is copied or checked
here: kernels ask `supported` in their predicates.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType
from ampkit.base.errors import UnsupportedError

from ..caching_allocator import HostArray as HostArray
from ..caching_allocator import address
from ..caching_allocator import empty as empty
from .library import library

MIN_ELEMENTS = 1 << 12  # elements; below, NumPy is as fast as the call of a kernel
FLOATS = frozenset({dtypes.float32, dtypes.bfloat16, dtypes.float16})  # what kernels compute with, in float32
# The numbers of `enum Kind` in kernels/include/array.h.
KINDS: dict[DType, int] = {
    dtypes.float32: 0, dtypes.bfloat16: 1, dtypes.float16: 2, dtypes.bool_: 3, dtypes.int64: 4, dtypes.float64: 5,
    dtypes.int32: 6, dtypes.uint8: 7,
}  # fmt: skip
_ADDRESS, _LAYOUT = struct.Struct("q"), struct.Struct("7q")


class _Array(ctypes.Structure):
    """`struct Array` of kernels/include/array.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int64),
        ("size", ctypes.c_int64 * 3),
        ("stride", ctypes.c_int64 * 3),
    )

    @classmethod
    def from_param(cls, array: HostArray | None) -> _Array:
        """What ctypes passes for `array`: at most three axes, aligned to the right; None is an array without data."""
        if array is None:
            return cls()
        layout = _layout(array.shape, array.strides, array.dtype)
        return cls.from_buffer_copy(_ADDRESS.pack(address(array)) + layout)


@lru_cache(4096)  # takes half the time of building it, and a step calls its kernels with the same layouts as the last
def _layout(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> bytes:
    """The fields of `struct Array` behind `data`."""
    missing = 3 - len(shape)
    steps = [stride // dtype.itemsize for stride in strides]
    return _LAYOUT.pack(KINDS[dtype], *[1] * missing, *shape, *[0] * missing, *steps)


# One letter per argument of a C function: array, address or bytes, integer, unsigned one, float32, float64.
_ARGUMENTS: dict[str, Any] = {
    "a": _Array,
    "p": ctypes.c_void_p,
    "i": ctypes.c_int64,
    "u": ctypes.c_uint64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}


class Function:
    """A function of the compiled library, by name; looked up at its first call, so that modules import without it."""

    def __init__(self, name: str, arguments: str, result: Any = None):
        self.name, self.arguments, self.result = name, arguments, result

    @cached_property
    def _function(self) -> Any:
        found = getattr(library(), self.name)
        found.argtypes, found.restype = [_ARGUMENTS[letter] for letter in self.arguments], self.result
        return found

    @cached_property
    def _failed_allocations(self) -> ctypes.c_int64:
        return ctypes.c_int64.in_dll(library(), "failed_allocations")

    def __call__(self, *arguments: Any) -> Any:
        failed = self._failed_allocations
        before, found = failed.value, self._function(*arguments)
        if failed.value != before:  # by another thread's call, too, which no caller can tell
            raise MemoryError(f"{self.name}: needs memory for intermediate results, the system has none left")
        return found


def available() -> bool:
    """Whether the compiled kernels are loaded."""
    return library() is not None


def supported(*arrays: HostArray) -> bool:
    """Whether kernels take these arrays: floating-point of at most 32 bits, aligned to their elements."""
    known: bool = library() is not None
    for array in arrays:  # no generator, which takes longer: this runs before nearly every kernel
        known = known and array.dtype in FLOATS and array.flags.aligned
    return known


def empty_like(array: HostArray, dtype: DType) -> HostArray:
    """An uninitialized array of the shape and the memory order of `array`, without gaps."""
    if array.flags.c_contiguous:
        return empty(array.shape, dtype)
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return empty([array.shape[axis] for axis in order], dtype).transpose(np.argsort(order))


def rows_along(array: HostArray, dim: int) -> HostArray | None:
    """`array` as a view [before, behind, n] whose last axis is `dim`; None where that takes a copy."""
    if array.ndim == 0:
        return array.reshape(1, 1, 1)
    at = dim % array.ndim
    if at == array.ndim - 1 and (flat := merge_axes(array, (prod(array.shape[:-1]), array.shape[-1]))) is not None:
        return flat[:, None]
    parts = merge_axes(array, (prod(array.shape[:at]), array.shape[at], prod(array.shape[at + 1 :])))
    return None if parts is None else parts.transpose(0, 2, 1)


def merge_axes(array: HostArray, shape: Sequence[int]) -> HostArray | None:
    """`array` reshaped as a view; None where that takes a copy."""
    try:
        return array.reshape(tuple(shape), copy=False)
    except ValueError:
        return None


def reshape_view(array: HostArray, shape: Sequence[int]) -> HostArray:
    """`array` reshaped as a view. Raises UnsupportedError where that takes a copy."""
    view = merge_axes(array, shape)
    if view is None:
        raise UnsupportedError
    return view

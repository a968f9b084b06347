"""Calls of compiled kernels with NumPy arrays: the typed layer between Python and the C functions.

    _softmax = Function("softmax_forward", "aai")       # void softmax_forward(Array, Array, int64)
    _softmax(out, rows, 0)

An array of at most three axes, or None, is passed as the object that it is, and read by the kernel. Nothing is copied
or checked here: kernels ask `supported` in their predicates.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType
from ampkit.base.errors import UnsupportedError
from ampkit.base.memory_format import inverse

from ..caching_allocator import HostArray as HostArray
from ..caching_allocator import empty as empty
from .library import library
from .numpy_arrays import KINDS as KINDS
from .numpy_arrays import entry

MIN_ELEMENTS = 1 << 12  # elements; below, NumPy's one or two passes are as fast as the call of a kernel
MIN_FUSED = 1 << 8  # elements, of an op that NumPy computes in more passes
FLOATS = frozenset({dtypes.float32, dtypes.bfloat16, dtypes.float16})  # what kernels compute with, in float32
# One letter per argument of a C function: array, tuple, address or bytes, integer, unsigned one, float32, float64.
_ARGUMENTS: dict[str, Any] = {
    "a": ctypes.py_object,
    "t": ctypes.py_object,
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
        found = entry(library(), self.name) if "a" in self.arguments else getattr(library(), self.name)
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


def supported(*arrays: HostArray | None) -> bool:
    """Whether kernels take these arrays: floating-point of at most 32 bits, aligned to their elements; None counts."""
    known: bool = library() is not None
    for array in arrays:  # no generator, which takes longer: this runs before nearly every kernel
        known = known and (array is None or (array.dtype in FLOATS and array.flags.aligned))
    return known


def aligned(array: HostArray) -> HostArray:
    """`array`, or a copy of it if it is not aligned to its elements: np.ascontiguousarray copies no such array."""
    return array if array.flags.aligned else array.copy("K")


def int64_keys(array: HostArray) -> HostArray:
    """Integers as kernels read them: int64, aligned; the array itself where it is."""
    return aligned(array.astype(np.int64, copy=False))


def empty_like(array: HostArray, dtype: DType) -> HostArray:
    """An uninitialized array of the shape and the memory order of `array`, without gaps.

    Where a reshape of `array` is a view, so is that of the result.
    """
    if array.flags.c_contiguous:
        return empty(array.shape, dtype)
    order = _order_of_result(array.shape, array.strides)
    return empty([array.shape[axis] for axis in order], dtype).transpose(inverse(order))


@lru_cache(1024)
def _order_of_result(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    # Row-major where elements share memory, as in sliding windows: another axis may lie between two that merge there.
    order = memory_order(strides)
    nested = [axis for axis in order if shape[axis] > 1 and strides[axis]]
    apart = all(abs(strides[i]) >= abs(strides[j]) * shape[j] for i, j in pairwise(nested))
    return order if apart else tuple(range(len(shape)))


@lru_cache(1024)
def memory_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of an array by falling stride, forward or backward in memory."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])))


def broadcast_to(array: HostArray, shape: tuple[int, ...]) -> HostArray:
    """A view of `array` broadcast to `shape`, with which it must agree; the array itself if that is its shape.

    np.broadcast_to takes as long as a small kernel.
    """
    if array.shape == shape:
        return array
    if not array.flags.c_contiguous:  # what the constructor refuses
        return np.broadcast_to(array, shape)
    steps = [0 if length == 1 else step for length, step in zip(array.shape, array.strides, strict=True)]
    view: HostArray = np.ndarray(shape, array.dtype, array, 0, [0] * (len(shape) - array.ndim) + steps)
    view.flags.writeable = False
    return view


def rows_along(array: HostArray, dim: int) -> HostArray | None:
    """`array` as a view [before, behind, n] whose last axis is `dim`; None where that takes a copy."""
    if array.ndim == 0:
        return array.reshape(1, 1, 1)
    at = dim % array.ndim
    if array.ndim == 2 and at == 1:
        return array[:, None]
    if at == array.ndim - 1 and (rows := merge_axes(array, (prod(array.shape[:at]), 1, array.shape[at]))) is not None:
        return rows
    parts = merge_axes(array, (prod(array.shape[:at]), array.shape[at], prod(array.shape[at + 1 :])))
    return None if parts is None else parts.transpose(0, 2, 1)


def merge_axes(array: HostArray, shape: Sequence[int]) -> HostArray | None:
    """`array` reshaped as a view; None where that takes a copy."""
    if array.flags.c_contiguous:  # a view, for which NumPy is quicker without `copy`
        return array.reshape(shape)
    try:
        return array.reshape(tuple(shape), copy=False)
    except ValueError:
        return None


def reshape_view(array: HostArray, shape: Sequence[int]) -> HostArray:
    """`array` reshaped as a view. Raises UnsupportedError where that takes a copy."""
    return need_view(merge_axes(array, shape))


def need_view(view: HostArray | None) -> HostArray:
    """A view of an array that a kernel writes: written to a copy, a result would be lost. Raises UnsupportedError for
    None, which stands for a copy.
    """
    if view is None:
        raise UnsupportedError
    return view

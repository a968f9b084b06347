"""Copies and casts between layouts and floating-point dtypes (kernels/shape/copy.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from math import prod

from ampkit.base.dtypes import DType

from .native.arrays import (
    FLOATS,
    KINDS,
    MIN_ELEMENTS,
    Function,
    HostArray,
    available,
    broadcast_to,
    empty,
    empty_like,
    merge_axes,
)

_AXES = 8  # AXES in copy.cpp
_MIN_FILLED = 1 << 15  # elements; NumPy, which reads nothing to fill an array, fills fewer as fast
_copy_array = Function("copy_array", "aap", ctypes.c_int64)


class _Layout(ctypes.Structure):
    """`struct Layout` of copy.cpp."""

    _fields_ = (
        ("axes", ctypes.c_int64),
        ("size", ctypes.c_int64 * _AXES),
        ("to_stride", ctypes.c_int64 * _AXES),
        ("from_stride", ctypes.c_int64 * _AXES),
        ("itemsize", ctypes.c_int64),
        ("to_kind", ctypes.c_int64),
        ("from_kind", ctypes.c_int64),
    )


def copy(target: HostArray, source: HostArray) -> None:
    """Write `source` into `target` [same shape, no memory in common], rounded to nearest even."""
    if target.size < MIN_ELEMENTS or not _copy_by_kernel(target, source):
        target[...] = source


def fill(target: HostArray, value: HostArray) -> None:
    """Write the 0-d array `value`, of the target's dtype, to every element of `target`."""
    if target.size < _MIN_FILLED:
        target[...] = value
    else:
        copy(target, broadcast_to(value, target.shape))


def contiguous(array: HostArray) -> HostArray:
    """`array` in row-major order without gaps: itself, or a copy."""
    if array.flags.c_contiguous:
        return array
    out = empty(array.shape, array.dtype)
    copy(out, array)
    return out


def reshaped(array: HostArray, shape: Sequence[int]) -> HostArray:
    """`array` reshaped: a view where that is one, else a copy, which `contiguous` makes."""
    view = merge_axes(array, shape)
    return contiguous(array).reshape(shape) if view is None else view


def convert(array: HostArray, dtype: DType) -> HostArray:
    """A copy of `array` in `dtype`, rounded to nearest even; in the same order of axes in memory."""
    out = empty_like(array, dtype)
    copy(out, array)
    return out


def _copy_by_kernel(target: HostArray, source: HostArray) -> bool:
    layout = _layout(target.shape, target.strides, source.strides, target.dtype, source.dtype)
    return layout is not None and bool(_copy_array(target, source, layout))


@lru_cache(4096)
def _layout(
    shape: tuple[int, ...], to: tuple[int, ...], of: tuple[int, ...], to_dtype: DType, of_dtype: DType
) -> ctypes._Pointer[_Layout] | None:
    """The axes from the innermost of the target, merged where both arrays allow; None for what the kernel refuses."""
    to_size, of_size = to_dtype.itemsize, of_dtype.itemsize
    known = to_dtype == of_dtype and of_dtype.kind in "fiub" and of_size in (1, 2, 4, 8)
    if not (known or {to_dtype, of_dtype} <= FLOATS) or not available():
        return None
    axes: list[tuple[int, int, int]] = []  # size, strides in elements
    for i in sorted(range(len(shape)), key=lambda i: abs(to[i])):
        if shape[i] == 1:
            continue
        if to[i] == 0 or to[i] % to_size or of[i] % of_size:
            return None
        size, to_stride, from_stride = shape[i], to[i] // to_size, of[i] // of_size
        if axes and axes[-1][1] * axes[-1][0] == to_stride and axes[-1][2] * axes[-1][0] == from_stride:
            axes[-1] = (axes[-1][0] * size, axes[-1][1], axes[-1][2])
        else:
            axes.append((size, to_stride, from_stride))
    axes += [(1, 1, 1)] * (2 - len(axes))
    if len(axes) > _AXES or not prod(shape):
        return None
    kinds = (to_size, 0, 0) if known else (0, KINDS[to_dtype], KINDS[of_dtype])
    return ctypes.pointer(_Layout(len(axes), *map(tuple, zip(*axes, strict=True)), *kinds))

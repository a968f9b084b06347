"""Copies and casts between layouts and floating-point dtypes (kernels/shape/copy.cpp)."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from math import prod

from ampkit.base.dtypes import DType

from .caching_allocator import address
from .native.arrays import FLOATS, KINDS, MIN_ELEMENTS, Function, HostArray, available, empty, empty_like

_AXES = 8  # AXES in copy.cpp
_copy_floats, _copy_elements = Function("copy_floats", "pipip"), Function("copy_elements", "ppip")


class _Layout(ctypes.Structure):
    """`struct Layout` of copy.cpp."""

    _fields_ = (
        ("axes", ctypes.c_int64),
        ("size", ctypes.c_int64 * _AXES),
        ("to_stride", ctypes.c_int64 * _AXES),
        ("from_stride", ctypes.c_int64 * _AXES),
    )


def copy(target: HostArray, source: HostArray) -> None:
    """Write `source` into `target` [same shape, no memory in common], rounded to nearest even."""
    if target.size < MIN_ELEMENTS or not _copy_by_kernel(target, source):
        target[...] = source


def contiguous(array: HostArray) -> HostArray:
    """`array` in row-major order without gaps: itself, or a copy."""
    if array.flags.c_contiguous:
        return array
    out = empty(array.shape, array.dtype)
    copy(out, array)
    return out


def convert(array: HostArray, dtype: DType) -> HostArray:
    """A copy of `array` in `dtype`, rounded to nearest even; in the same order of axes in memory."""
    out = empty_like(array, dtype)
    copy(out, array)
    return out


def _copy_by_kernel(target: HostArray, source: HostArray) -> bool:
    same = source.dtype == target.dtype
    known = (same and source.dtype.kind in "fiub" and source.itemsize in (1, 2, 4, 8)) or {
        source.dtype,
        target.dtype,
    } <= FLOATS
    if not known or not available() or not (source.flags.aligned and target.flags.aligned):
        return False
    layout = _layout(target.shape, target.strides, source.strides, target.itemsize, source.itemsize)
    if layout is None:
        return False
    if same:
        _copy_elements(address(target), address(source), source.itemsize, layout)
    else:
        _copy_floats(address(target), KINDS[target.dtype], address(source), KINDS[source.dtype], layout)
    return True


@lru_cache(4096)
def _layout(
    shape: tuple[int, ...], to: tuple[int, ...], of: tuple[int, ...], to_size: int, of_size: int
) -> ctypes._Pointer[_Layout] | None:
    """The axes from the innermost of the target, merged where both arrays allow; None for what the kernel refuses."""
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
    return ctypes.pointer(_Layout(len(axes), *map(tuple, zip(*axes, strict=True))))


def memory_order(array: HostArray) -> list[int]:
    """The axes of `array` by falling stride."""
    return sorted(range(array.ndim), key=lambda i: -array.strides[i])

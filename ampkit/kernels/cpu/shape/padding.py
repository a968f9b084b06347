"""CPU kernels of padding: all axes in one pass (padding.cpp)."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.copies import contiguous
from ampkit.backends.cpu.native.arrays import (
    KINDS,
    MIN_FUSED,
    Function,
    HostArray,
    aligned,
    available,
    empty,
    memory_order,
    supported,
)
from ampkit.base.dtypes import DType
from ampkit.base.memory_format import channels_are_last, inverse
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.shape import register_padding

_forward, _backward = Function("pad_forward", "ppiup"), Function("pad_backward", "pipip")
_AXES = 8  # AXES in padding.cpp
_LONG = 1 << 12  # elements of a row; rows are computed in parallel
_MODES = ("constant", "reflect", "replicate", "circular")  # `enum Mode` there


class _Padding(ctypes.Structure):
    """`struct Padding` of padding.cpp."""

    _fields_ = (
        ("axes", ctypes.c_int64),
        ("mode", ctypes.c_int64),
        *[(name, ctypes.c_int64 * _AXES) for name in ("size", "before", "wide", "stride")],
    )


@lru_cache(4096)
def _padding(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, widths: Any, mode: str, order: tuple[int, ...]
) -> ctypes._Pointer[_Padding]:
    """The axes from the innermost of `order`, those without padding merged where the array that is read allows.

    shape: without padding. strides, itemsize: of that array, in bytes.
    """
    axes: list[tuple[int, int, int, int]] = []  # size, before, wide, stride
    for i in reversed(order):
        (before, after), n, stride = widths[i], shape[i], strides[i] // itemsize
        inner, whole, wide = axes[-1][0] if axes else 0, axes[-1][3] if axes else 0, n + before + after
        unpadded = bool(axes) and inner == axes[-1][2] and (before == after == 0 or mode == "constant")
        if unpadded and stride == inner * whole and (len(axes) > 1 or wide * inner <= _LONG):
            axes[-1] = (n * inner, before * inner, wide * inner, whole)
        elif wide > 1:
            axes.append((n, before, wide, stride))
    axes += [(1, 0, 1, 0)] * (2 - len(axes))
    return ctypes.pointer(_Padding(len(axes), _MODES.index(mode), *map(tuple, zip(*axes, strict=True))))


def _fits(input: HostArray, widths: Any, *args: Any) -> bool:
    return 0 < input.ndim <= _AXES and len(widths) > 0 and input.itemsize in (1, 2, 4, 8) and available()


def _padded(input: HostArray, widths: Any, mode: str, value: Any = 0) -> HostArray:
    """input padded, channels-last where the input is."""
    bits = int.from_bytes(np.array(input.dtype.type(value), input.dtype).tobytes(), "little")
    order = (0, *range(2, input.ndim), 1) if channels_are_last(input) else tuple(range(input.ndim))
    input = aligned(input)
    if input.strides[order[-1]] != input.itemsize:
        input = contiguous(input.transpose(order)).transpose(inverse(order))
    out = empty([input.shape[i] + sum(widths[i]) for i in order], input.dtype)
    padding = _padding(input.shape, input.strides, input.itemsize, widths, mode, order)
    _forward(address(out), address(input), input.itemsize, bits, padding)
    return out.transpose(inverse(order))


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, widths: Any, mode: str) -> bool:
    return supported(dy) and dy.ndim <= _AXES


def _added(dy: HostArray, widths: Any, mode: str, dtype: DType) -> HostArray:
    order = memory_order(dy.strides)
    shape = tuple([wide - sum(pair) for wide, pair in zip(dy.shape, widths, strict=True)])
    dx = empty([shape[i] for i in order], dtype)
    padding = _padding(shape, dy.strides, dy.itemsize, widths, mode, order)
    _backward(address(dx), KINDS[dx.dtype], address(dy), KINDS[dy.dtype], padding)
    return dx.transpose(inverse(order))


register_padding("cpu", _padded, _fits, _added, _backward_fits, MIN_FUSED)

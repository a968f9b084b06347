"""Conversions between floating-point formats by oneDNN, a few times as fast as NumPy's."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...core import dtypes
from ...core.dtypes import DType
from . import onednn
from .dnnl import library
from .onednn import DST, SRC, Call, HostArray, Layout, attributes, empty, prepared, signed

FORMATS = frozenset({dtypes.float32, dtypes.float16, dtypes.bfloat16})
_DIMENSIONS = 12  # the most that oneDNN takes


def reorder(source: HostArray, target: HostArray) -> bool:
    """Copy `source` into `target` [same shape], whatever their formats and strides; False where oneDNN cannot."""

    def build() -> Call:
        of, to = Layout.of(source), Layout.of(target)
        engine = onednn.engine()
        return Call("reorder", [of.handle, engine, to.handle, engine, attributes()], [(SRC, of), (DST, to)])

    call = prepared(("reorder", signed(source), signed(target)), build)
    if call is None:
        return False
    call(source, target)
    return True


def convert(array: HostArray, dtype: DType) -> HostArray | None:
    """`array` in `dtype`, rounded to nearest even, its axes in memory as they lie; None where oneDNN cannot.

    float32, float16 and bfloat16 alone.
    """
    if not array.size or type(array) is not np.ndarray or not _converts(array.dtype, dtype):
        return None
    flat = flattened(array)
    if flat is not None:
        out = empty((flat.size,), dtype)
        return reordered_like(array, out) if reorder(flat, out) else None
    if array.ndim > _DIMENSIONS or min(array.strides) <= 0:
        return None
    out = empty(array.shape, dtype)
    return out if reorder(array, out) else None


@cache
def _converts(of: DType, to: DType) -> bool:
    return {of, to} <= FORMATS and library() is not None and reorder(np.zeros(16, of), np.zeros(16, to))


def flattened(array: HostArray) -> HostArray | None:
    """The elements of `array` in the order of memory, as a view; None if they do not lie side by side."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    if not array.size or min(array.strides) < 0:
        return None
    ordered = array.transpose(memory_order(array))
    return ordered.reshape(-1) if ordered.flags.c_contiguous else None


def memory_order(array: HostArray) -> list[int]:
    """The axes of `array`, the one of the longest stride first."""
    return sorted(range(array.ndim), key=lambda i: -array.strides[i])


def reordered_like(array: HostArray, flat: HostArray) -> HostArray:
    """`flat`, whose elements lie as those of the dense `array` do, with its axes."""
    if array.flags.c_contiguous:
        return flat.reshape(array.shape)
    order = memory_order(array)
    made: Any = flat.reshape([array.shape[i] for i in order])
    return made.transpose(np.argsort(order))  # type: ignore[no-any-return]

"""Conversions between floating-point formats by oneDNN and the CPU, a few times as fast as NumPy's."""

from __future__ import annotations

from functools import cache

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType

from .. import f16c
from . import primitive
from .library import flushes_bfloat16, library
from .primitive import DST, SRC, Call, HostArray, Layout, attributes, empty, prepared, signed

FORMATS = frozenset({dtypes.float32, dtypes.float16, dtypes.bfloat16})
_DIMENSIONS = 12  # the most that oneDNN takes


def reorder(source: HostArray, target: HostArray) -> bool:
    """Copy `source` into `target` [same shape], whatever their formats and strides; False where nothing is fast."""
    one, other = flattened(source), flattened(target)
    dense = one is not None and other is not None and alike(source, target)
    if source.dtype == target.dtype:
        if dense and _copied_flat(one, other):  # type: ignore[arg-type]
            return True
        return _moved(source, target) if source.itemsize == 2 else _reordered(source, target)
    if dtypes.float16 not in (source.dtype, target.dtype):
        return _reordered(source, target)
    if dtypes.float32 not in (source.dtype, target.dtype):
        return False
    if dense:
        return f16c.convert(one, other)  # type: ignore[arg-type]
    return _reordered(source, target) or (f16c.there() and _in_two(source, target))


def _moved(source: HostArray, target: HostArray) -> bool:
    # Of one 16-bit format: in pairs where these stay together, which leaves all bits as they are. Else as float16 where
    # oneDNN knows it, or as bfloat16 where the CPU has no units for that: they would make 0 of what they take for a
    # subnormal, float16's up to 7.6e-6. What bfloat16 takes for a NaN is one in float16.
    ours, theirs = _paired(source), _paired(target)
    if ours is not None and theirs is not None:
        return _reordered(ours, theirs)
    exact = source.dtype == dtypes.float16 and not flushes_bfloat16()
    return _reordered(source, target) or (
        exact and _reordered(source.view(dtypes.bfloat16), target.view(dtypes.bfloat16))
    )


def _copied_flat(source: HostArray, target: HostArray) -> bool:
    # As whole numbers of 32 bits: for a copy of float32 between equal layouts oneDNN has no fast code.
    whole = source.size - source.size % (4 // source.itemsize)
    if not whole or not _reordered(source[:whole].view(np.int32), target[:whole].view(np.int32)):
        return False
    target[whole:] = source[whole:]
    return True


def _paired(array: HostArray) -> HostArray | None:
    # Two neighbours of the last axis as one float32; None where that would not do for all of them.
    if not array.size or not array.ndim or array.shape[-1] % 2 or array.strides[-1] != 2:
        return None
    if any(stride % 4 for stride in array.strides[:-1]):
        return None
    return array.view(dtypes.float32)


def _reordered(source: HostArray, target: HostArray) -> bool:
    if library() is None:
        return False

    def build() -> Call:
        of, to = Layout.of(source), Layout.of(target)
        engine = primitive.engine()
        return Call("reorder", [of.handle, engine, to.handle, engine, attributes()], [(SRC, of), (DST, to)])

    call = prepared(("reorder", signed(source), signed(target)), build)
    if call is None:
        return False
    call(source, target)
    return True


def _in_two(source: HostArray, target: HostArray) -> bool:
    # Moved and converted, one after the other.
    between = convert(source, target.dtype) if flattened(source) is not None else np.empty_like(target, source.dtype)
    if between is None:
        return False
    if between.dtype == target.dtype:
        return _copied(between, target)
    return _copied(source, between) and reorder(between, target)


def _copied(source: HostArray, target: HostArray) -> bool:
    if min(source.strides) <= 0 or not reorder(source, target):
        target[...] = source
    return True


def convert(array: HostArray, dtype: DType) -> HostArray | None:
    """`array` in `dtype`, rounded to nearest even, its axes in memory as they lie; None where nothing is fast.

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
    return {of, to} <= FORMATS and reorder(np.zeros(16, of), np.zeros(16, to))


def alike(a: HostArray, b: HostArray) -> bool:
    """Whether elements of `a` and `b` have the same places, counted in elements."""
    return a.shape == b.shape and [s // a.itemsize for s in a.strides] == [s // b.itemsize for s in b.strides]


def fill(target: HostArray, source: HostArray) -> None:
    """Write `source` to `target` [same shape], whatever their formats and strides, rounded to nearest even."""
    if not reorder(source, target):
        target[...] = source


def flattened(array: HostArray) -> HostArray | None:
    """The elements of `array` in the order of memory, as a view; None if they do not lie side by side."""
    if array.flags.c_contiguous:
        return array if array.ndim == 1 else array.reshape(-1)
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
    made = flat.reshape([array.shape[i] for i in order])
    return made.transpose([order.index(axis) for axis in range(array.ndim)])

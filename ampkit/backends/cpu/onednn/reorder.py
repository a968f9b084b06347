"""Copies and casts between floating-point dtypes and layouts by oneDNN, several times as fast as NumPy's."""

from __future__ import annotations

from functools import cache

import numpy as np

from ampkit.base import dtypes
from ampkit.base.dtypes import DType

from .. import f16c
from . import primitive
from .library import flushes_bfloat16, library
from .primitive import DST, SRC, Call, HostArray, Layout, attributes, cached, empty, signature

FORMATS = frozenset({dtypes.float32, dtypes.float16, dtypes.bfloat16})
_DIMENSIONS = 12  # the most axes that oneDNN accepts


def reorder(source: HostArray, target: HostArray) -> bool:
    """Copy `source` into `target` [same shape], of any dtypes and strides; False where NumPy is as fast."""
    one, other = flat_view(source), flat_view(target)
    dense = one is not None and other is not None and same_layout(source, target)
    if source.dtype == target.dtype:
        if dense and _copy_flat(one, other):  # type: ignore[arg-type]  # dense means views
            return True
        return _copy_16_bit(source, target) if source.itemsize == 2 else _onednn_reorder(source, target)
    if dtypes.float16 not in (source.dtype, target.dtype):
        return _onednn_reorder(source, target)
    if dtypes.float32 not in (source.dtype, target.dtype):
        return False
    if dense:
        return f16c.convert(one, other)  # type: ignore[arg-type]  # dense means views
    return _onednn_reorder(source, target) or (f16c.there() and _move_then_convert(source, target))


def _copy_16_bit(source: HostArray, target: HostArray) -> bool:
    # A copy within one 16-bit dtype. In pairs, as float32, where neighbours stay together: all bits survive. Else as
    # float16 where oneDNN supports it, or as bfloat16 on CPUs without bfloat16 instructions: these would flush what
    # they take for subnormals to 0, float16 values up to 7.6e-6. Bits of a bfloat16 NaN are a NaN in float16, too.
    ours, theirs = _as_float32_pairs(source), _as_float32_pairs(target)
    if ours is not None and theirs is not None:
        return _onednn_reorder(ours, theirs)
    exact = source.dtype == dtypes.float16 and not flushes_bfloat16()
    return _onednn_reorder(source, target) or (
        exact and _onednn_reorder(source.view(dtypes.bfloat16), target.view(dtypes.bfloat16))
    )


def _copy_flat(source: HostArray, target: HostArray) -> bool:
    # As int32: oneDNN has no fast copy of float32 between equal layouts.
    whole = source.size - source.size % (4 // source.itemsize)
    if not whole or not _onednn_reorder(source[:whole].view(np.int32), target[:whole].view(np.int32)):
        return False
    target[whole:] = source[whole:]
    return True


def _as_float32_pairs(array: HostArray) -> HostArray | None:
    # A view with two neighbours of the last axis as one float32; None where the strides do not allow it.
    if not array.size or not array.ndim or array.shape[-1] % 2 or array.strides[-1] != 2:
        return None
    if any(stride % 4 for stride in array.strides[:-1]):
        return None
    return array.view(dtypes.float32)


def _onednn_reorder(source: HostArray, target: HostArray) -> bool:
    if library() is None:
        return False

    def build() -> Call:
        of, to = Layout.of(source), Layout.of(target)
        engine = primitive.engine()
        return Call("reorder", [of.handle, engine, to.handle, engine, attributes()], [(SRC, of), (DST, to)])

    call = cached(("reorder", signature(source), signature(target)), build)
    if call is None:
        return False
    call(source, target)
    return True


def _move_then_convert(source: HostArray, target: HostArray) -> bool:
    # A change of layout and a cast, one after the other.
    between = convert(source, target.dtype) if flat_view(source) is not None else np.empty_like(target, source.dtype)
    if between is None:
        return False
    if between.dtype == target.dtype:
        return _copy(between, target)
    return _copy(source, between) and reorder(between, target)


def _copy(source: HostArray, target: HostArray) -> bool:
    if min(source.strides) <= 0 or not reorder(source, target):
        target[...] = source
    return True


def convert(array: HostArray, dtype: DType) -> HostArray | None:
    """Cast `array` to `dtype`, rounded to nearest even, in the same memory layout; None where NumPy is as fast.

    Only between float32, float16 and bfloat16.
    """
    if not array.size or type(array) is not np.ndarray or not _has_fast_conversion(array.dtype, dtype):
        return None
    flat = flat_view(array)
    if flat is not None:
        out = empty((flat.size,), dtype)
        return unflatten(array, out) if reorder(flat, out) else None
    if array.ndim > _DIMENSIONS or min(array.strides) <= 0:
        return None
    out = empty(array.shape, dtype)
    return out if reorder(array, out) else None


@cache
def _has_fast_conversion(of: DType, to: DType) -> bool:
    return {of, to} <= FORMATS and reorder(np.zeros(16, of), np.zeros(16, to))


def same_layout(a: HostArray, b: HostArray) -> bool:
    """Whether `a` and `b` have the same shape and the same strides, counted in elements."""
    return a.shape == b.shape and [s // a.itemsize for s in a.strides] == [s // b.itemsize for s in b.strides]


def fill(target: HostArray, source: HostArray) -> None:
    """Write `source` to `target` [same shape], of any dtypes and strides, rounded to nearest even."""
    if not reorder(source, target):
        target[...] = source


def flat_view(array: HostArray) -> HostArray | None:
    """A 1-d view of the elements in memory order; None if they are not contiguous in any order of axes."""
    if array.flags.c_contiguous:
        return array if array.ndim == 1 else array.reshape(-1)
    if not array.size or min(array.strides) < 0:
        return None
    ordered = array.transpose(memory_order(array))
    return ordered.reshape(-1) if ordered.flags.c_contiguous else None


def memory_order(array: HostArray) -> list[int]:
    """The axes of `array` by falling stride."""
    return sorted(range(array.ndim), key=lambda i: -array.strides[i])


def unflatten(array: HostArray, flat: HostArray) -> HostArray:
    """`flat` with the shape and the order of axes of the dense `array`: the inverse of `flat_view`."""
    if array.flags.c_contiguous:
        return flat.reshape(array.shape)
    order = memory_order(array)
    made = flat.reshape([array.shape[i] for i in order])
    return made.transpose([order.index(axis) for axis in range(array.ndim)])

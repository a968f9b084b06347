"""Binary arithmetic and ReLU by oneDNN: one pass over memory by all threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ampkit.base.dtypes import DType, float32, uint8

from . import eltwise
from .all_finite import finite
from .eltwise import in_pieces, laid_flat
from .primitive import (
    ALGORITHM,
    DST,
    MIN_ELEMENTS,
    POST_OP,
    SRC,
    SRC_1,
    Call,
    HostArray,
    Layout,
    attributes,
    cached,
    empty,
)
from .reorder import FORMATS, memory_order, same_layout, unflatten

_LARGE = 1 << 16  # elements of float32: for fewer, NumPy is as fast
PIECE = 1 << 18  # elements of flat memory: with an optimizer's moments 4 MiB, shared by the threads' caches


def fits(a: HostArray, b: HostArray) -> bool:
    """Whether `a` and `b` are large, of one dtype that oneDNN supports, and of one layout."""
    return a.size >= (_LARGE if a.dtype == float32 else MIN_ELEMENTS) and same_layout(a, b) and eltwise.fits(a, b)


def fit_widened(a: HostArray, b: HostArray) -> bool:
    """`fits`, or one of them is float32 and the other of a narrower format: then `both` widens that one as it goes."""
    if a.dtype == b.dtype:
        return fits(a, b)
    mixed = a.size >= MIN_ELEMENTS and float32 in (a.dtype, b.dtype) and {a.dtype, b.dtype} <= FORMATS
    return mixed and same_layout(a, b) and eltwise.fits(a) and eltwise.fits(b)


def both(kind: str, a: HostArray, b: HostArray) -> HostArray | None:
    """`a` and `b`, for which `fit_widened` holds, by "add", "sub" or "mul", in the wider format and the order of `a`.

    None where oneDNN has no fast code for it.
    """
    if a.dtype != float32 and b.dtype == float32:
        if kind == "sub":
            return None
        a, b = b, a  # the first is what the result is like
    left, right = laid_flat(a), laid_flat(b)
    out = empty((left.size,), left.dtype)
    return unflatten(a, out) if in_pieces(partial(two, kind), [left, right], out) else None


def two(kind: str, left: HostArray, right: HostArray, out: HostArray) -> bool:
    """Write `left` and `right`, flat, by "add", "sub" or "mul" to `out`, like `left`; False where no code is fast."""
    size, first, second = left.size, left.dtype, right.dtype
    call = cached(("binary", kind, size, first, second), lambda: _two(kind, size, first, second))
    if call is None:
        return False
    call(left, right, out)
    return True


def spread(kind: str, a: HostArray, b: HostArray) -> HostArray | None:
    """`both` for `b` that broadcasts to `a`, for which `eltwise.fits` holds; in the format and order of `a`.

    None where oneDNN has no fast code for it.
    """
    order = memory_order(a)
    b = np.ascontiguousarray(b.reshape((1,) * (a.ndim - b.ndim) + b.shape).transpose(order))
    first, second = _grouped([a.shape[i] for i in order], b.shape)
    key = ("spread", kind, first, second, a.dtype, b.dtype)
    call = cached(key, lambda: calling(kind, Layout.dense(first, a.dtype), Layout.dense(second, b.dtype)))
    if call is None:
        return None
    flat = laid_flat(a)
    out = empty((flat.size,), a.dtype)
    call(flat, b, out)
    return unflatten(a, out)


def _grouped(whole: Sequence[int], part: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    # Both shapes with neighbouring axes taken together that `part` has, or has not: oneDNN knows few axes best.
    found: list[tuple[int, bool]] = []
    for n, m in zip(whole, part, strict=True):
        there = n == m
        if found and found[-1][1] == there:
            found[-1] = found[-1][0] * n, there
        elif n != 1:
            found.append((n, there))
    return tuple([n for n, _ in found]), tuple([n if there else 1 for n, there in found])


def positive(array: HostArray) -> HostArray:
    """max(array, 0), for which `eltwise.fits` holds. NaN stays NaN."""

    def run(flat: HostArray, out: HostArray) -> bool:
        # The second of two operands is the answer where one is NaN: 0 at first, the array itself then.
        call = cached(("positive", flat.size, flat.dtype), lambda: _by_zero("max", "max", flat.size, flat.dtype))
        call(flat, _zero(), out, flat)
        return True

    flat = laid_flat(array)
    out = empty((flat.size,), flat.dtype)
    in_pieces(run, [flat], out)
    return unflatten(array, out)


def by_mask(array: HostArray, mask: HostArray, scale: float) -> HostArray:
    """`array`, for which `eltwise.fits` holds, times `mask` [same shape] bool, contiguous, times `scale`."""

    def run(flat: HostArray, bits: HostArray, out: HostArray) -> bool:
        call = cached(("by_mask", flat.size, flat.dtype, scale), lambda: _scaled(flat.size, flat.dtype, scale))
        call(flat, bits, out)
        return True

    flat = laid_flat(array)
    out = empty((flat.size,), flat.dtype)
    bits = mask if array.flags.c_contiguous else mask.transpose(memory_order(array))
    in_pieces(run, [flat, bits.reshape(-1).view(np.uint8)], out)
    return unflatten(array, out)


def where_nonzero(values: HostArray, of: HostArray) -> HostArray | None:
    """`values` where `of` is not 0, else 0; None where an infinity or a NaN stands there. Both as `fits` wants them."""

    def run(flat: HostArray, mask: HostArray, out: HostArray) -> bool:
        call = cached(("where", flat.size, flat.dtype), lambda: _by_zero("ne", "mul", flat.size, flat.dtype))
        call(mask, _zero(), out, flat)
        return finite(out)

    flat = laid_flat(values)
    out = empty((flat.size,), flat.dtype)
    return unflatten(values, out) if in_pieces(run, [flat, laid_flat(of)], out) else None


@cache
def _zero() -> HostArray:
    made = empty((1,), float32)
    made[0] = 0
    return made


def calling(kind: str, first: Layout, second: Layout, *after: tuple[Any, ...]) -> Call:
    """The call of `kind` on two arrays, the second of which may broadcast: (first, second, result like the first).

    after: as for `attributes`; what their layouts stand for are further arrays, in their order.
    """
    given = [ALGORITHM[kind], first.handle, second.handle, first.handle, attributes(*after)]
    more = [(POST_OP * (i + 1) | SRC_1, rest[0]) for i, (_, *rest) in enumerate(after) if isinstance(rest[0], Layout)]
    return Call("binary", given, [(SRC, first), (SRC_1, second), (DST, first), *more])


def _two(kind: str, size: int, first: DType, second: DType) -> Call:
    return calling(kind, Layout.dense((size,), first), Layout.dense((size,), second))


def _scaled(size: int, dtype: DType, scale: float) -> Call:
    # source * another of whole numbers, times scale
    return calling("mul", Layout.dense((size,), dtype), Layout.dense((size,), uint8), ("linear", scale, 0.0))


def _by_zero(first: str, then: str, size: int, dtype: DType) -> Call:
    # (source `first` 0) `then` another array
    row = Layout.dense((size,), dtype)
    return calling(first, row, Layout.dense((1,), float32), (then, row))

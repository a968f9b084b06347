"""binary: arithmetic of two arrays of one shape by oneDNN, and ReLU, in one pass over memory by all threads."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...core.dtypes import DType, float32, uint8
from . import eltwise
from .formats import flattened, reordered_like
from .gemm import column_sums
from .onednn import ALGORITHM, DST, POST_OP, SRC, SRC_1, WORTH, Call, HostArray, Layout, attributes, empty, prepared

_LARGE = 1 << 17  # elements of float32: fewer stay in the caches, where NumPy is as fast
_COLUMNS = 512


def fits(a: HostArray, b: HostArray) -> bool:
    """Whether `a` and `b` are large, of one format that oneDNN computes in, and lie alike."""
    return (
        a.size >= (_LARGE if a.dtype == float32 else WORTH)
        and type(b) is np.ndarray
        and a.shape == b.shape
        and eltwise.fits(a, b)
    )


def both(kind: str, a: HostArray, b: HostArray) -> HostArray:
    """`a` and `b`, for which `fits` holds, by "add", "sub" or "mul": in their format and order."""
    left, right = _flat(a), _flat(b)
    out = empty((left.size,), left.dtype)
    prepared(("binary", kind, left.size, left.dtype), lambda: _two(kind, left.size, left.dtype))(left, right, out)
    return reordered_like(a, out)


def positive(array: HostArray) -> HostArray:
    """max(array, 0), for which `eltwise.fits` holds. NaN stays NaN."""
    flat = _flat(array)
    out = empty((flat.size,), flat.dtype)
    # The second of two operands is the answer where one is NaN: 0 at first, the array itself then.
    call = prepared(("positive", flat.size, flat.dtype), lambda: _by_zero("max", "max", flat.size, flat.dtype))
    call(flat, _zero(), out, flat)
    return reordered_like(array, out)


def by_mask(array: HostArray, mask: HostArray, scale: float) -> HostArray:
    """`array`, for which `eltwise.fits` holds, times `mask` [flat] bool, in the order of memory, times `scale`."""
    flat, bits = _flat(array), mask.view(np.uint8)
    out = empty((flat.size,), flat.dtype)
    call = prepared(("by_mask", flat.size, flat.dtype, scale), lambda: _scaled(flat.size, flat.dtype, scale))
    call(flat, bits, out)
    return reordered_like(array, out)


def where_nonzero(values: HostArray, of: HostArray) -> HostArray | None:
    """`values` where `of` is not 0, else 0; None where an infinity or a NaN stands there. Both as `fits` wants them."""
    flat, mask = _flat(values), _flat(of)
    out = empty((flat.size,), flat.dtype)
    call = prepared(("where", flat.size, flat.dtype), lambda: _by_zero("ne", "mul", flat.size, flat.dtype))
    call(mask, _zero(), out, flat)
    return reordered_like(values, out) if _finite(out) else None


def _finite(flat: HostArray) -> bool:
    # By sums, which read at the pace of memory; one that overflows counts as not finite, too.
    whole = flat.size - flat.size % _COLUMNS
    parts: Any = column_sums(flat[:whole].reshape(-1, _COLUMNS), float32), flat[whole:].astype(np.float32)
    return all(np.isfinite(part).all() for part in parts)


def _flat(array: HostArray) -> HostArray:
    flat = flattened(array)
    assert flat is not None
    return flat


@cache
def _zero() -> HostArray:
    made = empty((1,), float32)
    made[0] = 0
    return made


def _row(size: int, dtype: DType) -> Layout:
    return Layout((size,), dtype, (dtype.itemsize,))


def _two(kind: str, size: int, dtype: DType) -> Call:
    row = _row(size, dtype)
    given = [ALGORITHM[kind], row.handle, row.handle, row.handle, attributes()]
    return Call("binary", given, [(SRC, row), (SRC_1, row), (DST, row)])


def _scaled(size: int, dtype: DType, scale: float) -> Call:
    # source * another of whole numbers, times scale
    row, mask = _row(size, dtype), _row(size, uint8)
    given = [ALGORITHM["mul"], row.handle, mask.handle, row.handle, attributes(("linear", scale, 0.0))]
    return Call("binary", given, [(SRC, row), (SRC_1, mask), (DST, row)])


def _by_zero(first: str, then: str, size: int, dtype: DType) -> Call:
    # (source `first` 0) `then` another array
    row, zero = _row(size, dtype), _row(1, float32)
    given = [ALGORITHM[first], row.handle, zero.handle, row.handle, attributes((then, row))]
    return Call("binary", given, [(SRC, row), (SRC_1, zero), (DST, row), (POST_OP | SRC_1, row)])

"""Matrix products by oneDNN, for operands of any strides.

If the CPU multiplies a 16-bit dtype fast, operands go in as they are stored and the float32 sum is rounded once. If
not, a kernel of ours converts them to float32 block by block (widening_matmul.py), or they are cast to float32,
multiplied, and the result is rounded: the same values, up to the order of summation.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import DType, float32, uint8
from ampkit.base.errors import UnsupportedError
from ampkit.base.version_counter import derived_value

from .. import widening_matmul
from ..copies import contiguous
from ..device import in_format
from ..native.arrays import FLOATS
from ..native.library import has_products
from .library import has_fast_matmul, library
from .primitive import (
    BIAS,
    DST,
    SCALES,
    SRC,
    WEIGHTS,
    Call,
    HostArray,
    Layout,
    attributes,
    cached,
    empty,
    packing_reorder,
    signature,
)

MIN_MACS = 1 << 15  # multiply-adds; below, NumPy's call costs less


def is_profitable(a: HostArray, b: HostArray) -> bool:
    """Whether oneDNN is faster than NumPy for these operands: [..., M, K] and [..., K, N]."""
    known = a.dtype in FLOATS and b.dtype == a.dtype and library() is not None
    enough = a.ndim > 1 < b.ndim and max(a.size * b.shape[-1], b.size * a.shape[-2]) >= MIN_MACS
    return known and enough


def gemm(
    a: HostArray,
    b: HostArray,
    dtype: DType,
    buffer: HostArray | None = None,
    bias: HostArray | None = None,
    key: Any = None,
) -> HostArray:
    """Return a [..., M, K] @ b [..., K, N] + bias [N] in `dtype`. Raises UnsupportedError if oneDNN has no fast one.

    Leading axes broadcast. Products are exact, accumulated in float32. buffer: to write the result to, if it has its
    shape and dtype. key: version and array of the owner of b, under which packed b is cached, or None.
    """
    if b.ndim == 2 and a.ndim > 2:
        rows = gemm(as_rows(a), b, dtype, None, bias, key)
        return rows.reshape(*a.shape[:-1], b.shape[-1])
    bias = _dense(bias)
    if a.ndim != b.ndim:
        a, b = (array.reshape((1,) * (max(a.ndim, b.ndim) - array.ndim) + array.shape) for array in (a, b))
    lead = a.shape[:-2] if a.shape[:-2] == b.shape[:-2] else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = *lead, a.shape[-2], b.shape[-1]
    buffer = buffer if buffer is not None and buffer.shape == shape and buffer.dtype == dtype else None
    if a.dtype == b.dtype and has_fast_matmul(a.dtype):
        out = empty(shape, dtype) if buffer is None else buffer
        if (key and _matmul_packed(a, b, out, bias, key)) or matmul_into(a, b, out, bias):
            return out
    if a.dtype == b.dtype == float32:
        raise UnsupportedError
    return _matmul_float32(a, b, dtype, bias, buffer)


def in_compute_dtype(array: HostArray, depth: int = 0) -> HostArray:
    """`array` in the dtype that its products read, cast once for several products, of whatever `depth`."""
    return array if has_products() or has_fast_matmul(array.dtype) else in_format(array, float32)


def matmul_into(
    a: HostArray,
    b: HostArray,
    out: HostArray,
    bias: HostArray | None = None,
    accumulate: bool = False,
) -> bool:
    """Write a @ b + bias to `out`, of any strides; False where oneDNN has no fast implementation.

    a [..., M, K] and b [..., K, N] have the same number of axes and one dtype that `has_fast_matmul`; leading axes
    broadcast. accumulate: add a @ b to the contents of `out`.
    """
    a, b, bias = _with_unit_stride(a), _with_unit_stride(b), _dense(bias)
    key = ("matmul", *map(signature, (a, b, out, bias)), accumulate)
    call = cached(key, lambda: _call(a, Layout.of(b), out, bias, accumulate))
    if call is None:
        return False
    call(*((a, b, out) if bias is None else (a, b, out, bias)))
    return True


def scaled_into(a: HostArray, b: HostArray, out: HostArray, bias: HostArray | None, factor: float) -> bool:
    """Write (a @ b) * factor + bias to `out`, rounded once, as `matmul_into`; factor is a float32."""
    a, b, bias = _with_unit_stride(a), _with_unit_stride(b), _dense(bias)

    def build() -> tuple[Call, HostArray]:
        scale = np.empty(1, float32)  # of this thread, as the call
        return _call(a, Layout.of(b), out, bias, False, scale), scale

    made = cached(("scaled", *map(signature, (a, b, out, bias))), build)
    if made is None:
        return False
    made[1][0] = factor
    made[0](*((a, b, out) if bias is None else (a, b, out, bias)))
    return True


def _call(
    a: HostArray, right: Layout, out: HostArray, bias: HostArray | None, accumulate: bool,
    scale: HostArray | None = None,
) -> Call:  # fmt: skip
    left, to = map(Layout.of, (a, out))
    row = None if bias is None else Layout((1,) * (a.ndim - 1) + bias.shape, bias.dtype, _strides(bias, a.ndim))
    described = [left.handle, right.handle, row and row.handle, to.handle, attributes(accumulate, scale is not None)]
    place = (WEIGHTS, right if right.has_layout else None)
    scales = [] if scale is None else [(SCALES | SRC, scale)]
    return Call("matmul", described, [(SRC, left), place, (DST, to), *([(BIAS, row)] if row else [])], constants=scales)


class PackedMatmul(NamedTuple):
    """A product with a packed second operand, and the reorder that packs it, into `nbytes` bytes."""

    run: Call
    pack: Call
    layouts: tuple[int, int]
    nbytes: int


def packed_matmul(
    a: HostArray, b: HostArray, out: HostArray, bias: HostArray | None, accumulate: bool = False
) -> PackedMatmul | None:
    """The product a @ b + bias with b in the layout that oneDNN chooses; None where that is its present layout."""

    def build() -> PackedMatmul | None:
        run = _call(a, Layout(b.shape, b.dtype, None), out, bias, accumulate)
        ours, theirs = Layout.of(b), run.layouts[1]
        if ours.interned_id == theirs.interned_id:
            return None
        return PackedMatmul(run, packing_reorder(ours, theirs), (ours.interned_id, theirs.interned_id), theirs.nbytes)

    return cached(("packed", *map(signature, (a, b, out, bias)), accumulate), build)


def pack(packed: PackedMatmul, b: HostArray) -> HostArray:
    """b in the layout of `packed`, as uint8 memory."""
    buffer = empty((packed.nbytes,), uint8)
    packed.pack(b, buffer)
    return buffer


def _matmul_packed(a: HostArray, b: HostArray, out: HostArray, bias: HostArray | None, key: Any) -> bool:
    """Write a @ b + bias to `out` with packed b. Returns False if there is no packed copy in the cache."""
    a = _with_unit_stride(a)
    packed = packed_matmul(a, b, out, bias)
    if packed is None:
        return False
    packed_b = derived_value(key[0], key[1], packed.layouts, lambda: pack(packed, b))
    if packed_b is None:
        return False
    packed.run(*((a, packed_b, out) if bias is None else (a, packed_b, out, bias)))
    return True


class PackedWeight:
    """The second operand of many products, packed by the first: `weight(a, out, bias, accumulate)` as `matmul_into`.

    Its dtype must satisfy `has_fast_matmul`; a and out are C-contiguous, with any number of rows.
    """

    def __init__(self, b: HostArray):
        self.b = b
        self._buffers: dict[Any, HostArray] = {}
        self._calls: dict[Any, Any] = {}

    def __call__(self, a: HostArray, out: HostArray, bias: HostArray | None = None, accumulate: bool = False) -> bool:
        key, bias = (len(a), bias is None, accumulate), _dense(bias)
        if key not in self._calls:
            self._calls[key] = self._create(a, out, bias, accumulate)
        call, packed_b = self._calls[key]
        if call is None:
            return matmul_into(a, self.b, out, bias, accumulate=accumulate)
        call(*((a, packed_b, out) if bias is None else (a, packed_b, out, bias)))
        return True

    def _create(self, a: HostArray, out: HostArray, bias: HostArray | None, accumulate: bool) -> Any:
        packed = packed_matmul(a, self.b, out, bias, accumulate)
        if packed is None:
            return None, None
        if packed.layouts not in self._buffers:
            self._buffers[packed.layouts] = pack(packed, self.b)
        return packed.run, self._buffers[packed.layouts]


def _dense(bias: HostArray | None) -> HostArray | None:
    return None if bias is None else np.ascontiguousarray(bias)  # oneDNN accepts other strides, and ignores them


def _strides(bias: HostArray, axes: int) -> tuple[int, ...]:
    return (bias.nbytes,) * (axes - 1) + bias.strides


def _matmul_float32(
    a: HostArray, b: HostArray, dtype: DType, bias: HostArray | None, buffer: HostArray | None
) -> HostArray:
    if a.shape[:-2] == b.shape[:-2]:
        out = empty((*a.shape[:-1], b.shape[-1]), dtype) if buffer is None else buffer
        if widening_matmul.matmul_into(a, b, out, bias):
            return out
    wide, row = (in_format(a, float32), in_format(b, float32)), None if bias is None else in_format(bias, float32)
    return in_format(gemm(*wide, float32, buffer, row), dtype)


def as_rows(array: HostArray) -> HostArray:
    """[..., N] -> [rows, N]."""
    return array if array.ndim == 2 else array.reshape(prod(array.shape[:-1]), array.shape[-1])  # N may be 0


def _with_unit_stride(array: HostArray) -> HostArray:
    # oneDNN accepts any positive strides; only contiguous rows or columns are fast.
    if min(array.strides) > 0 and array.itemsize in array.strides[-2:]:
        return array
    return contiguous(array).reshape(-1).reshape(array.shape)  # an axis of length 1 may have stride 0

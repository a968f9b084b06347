"""Products of operands below 16 bits by cublasLt, which scales their sums by the operands' own scales.

Both operands lie contiguous along the axis that is summed over: the only layout that Ada, Hopper and consumer Blackwell
have. Partial sums are added in float32 (fast accumulation is off), in the card's order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import LOW, Array, DType, float4_e2m1fn_x2, int8, int32

from .blas import MAX_SIZE, Compute, Epilogue, Matrix, Memory, Product, ScaleMode
from .gemm import MAX_ALIGNMENT

ALIGNMENT = 16  # bytes: of addresses and of rows
_INTEGERS = 4  # rows, columns and terms of products of int8 are multiples of this
_FLOATS = np.dtype(np.float32).itemsize


class Codes(NamedTuple):
    """An operand [rows, K]: its codes, a contiguous matrix of bytes, their format, and K.

    mode, scales: how the scales lie, contiguous, as ScaleMode says; without scales they are 1.
    """

    codes: Array
    format: DType
    columns: int
    mode: ScaleMode = ScaleMode.SCALAR
    scales: Array | None = None


def multiply(a: Codes, b: Codes, out: Array, bias: Array | None = None) -> bool:
    """Write a @ b.T + bias to `out` [M, N], contiguous float32 or 16 bits; False if cublasLt has no algorithm.

    bias [N]: of the dtype of `out`, one of 16 bits.
    """
    (m, n), k, backend = out.shape, a.columns, _backend(out)
    if max(m, n, k) > MAX_SIZE or not _aligned(a, b, out):
        return False
    left, right, d = Matrix(b.format, k, n, k), Matrix(a.format, k, m, k), Matrix(out.dtype, n, m, n)
    memory = Memory(*map(_address, (b.codes, a.codes, out, out, bias, None, b.scales, a.scales)))
    alignment = Memory(*(min(address & -address, MAX_ALIGNMENT) for address in memory))
    epilogue, scales = Epilogue.NONE if bias is None else Epilogue.BIAS, (b.mode, a.mode)
    product = Product(left, right, d, d, (True, False), Compute.FLOAT32, alignment, epilogue, 0, scales)
    return bool(backend.cublaslt.run(out.data.device_id, product, memory))


def _aligned(a: Codes, b: Codes, out: Array) -> bool:
    """Whether sizes and addresses are those that FP8 and FP4 tensor cores take."""
    rows = a.columns // 2 if a.format == float4_e2m1fn_x2 else a.columns
    odd_scales = {a.mode, b.mode} & {ScaleMode.STRIP, ScaleMode.SQUARE} and out.shape[0] % 4
    sizes = rows % ALIGNMENT or a.columns % ALIGNMENT or out.shape[1] % ALIGNMENT or odd_scales
    addresses = [_address(x) for x in (a.codes, b.codes, out, a.scales, b.scales)]
    scalars = {ScaleMode.SCALAR: _FLOATS}
    for found, mode in zip(addresses[3:], (a.mode, b.mode), strict=True):
        if found % scalars.get(mode, ALIGNMENT):
            return False
    return not (sizes or any(address % ALIGNMENT for address in addresses[:3]))


def integer_product(a: Array, b: Array) -> Array | None:
    """a [M, K] @ b [N, K].T of int8 in int32, exactly; None if cublasLt has no algorithm.

    Sizes that are no multiple of 4 are padded with zeros, which copies the operands.
    """
    (m, k), n = a.shape, b.shape[0]
    if _backend(a).cublaslt.unavailable_reason():
        return None
    a, b = _padded(a, 0, -k % _INTEGERS), _padded(b, -n % _INTEGERS, -k % _INTEGERS)
    out = _backend(a).empty((m, b.shape[0]), int32)
    (_, depth), columns = a.shape, b.shape[0]
    memory = Memory(*map(_address, (b, a, out, out)))
    alignment = Memory(*(min(address & -address, MAX_ALIGNMENT) for address in memory))
    left, right, d = (
        Matrix(int8, depth, columns, depth),
        Matrix(int8, depth, m, depth),
        Matrix(int32, columns, m, columns),
    )
    product = Product(left, right, d, d, (True, False), Compute.INT32, alignment)
    if max(m, columns, depth) > MAX_SIZE or not _backend(out).cublaslt.run(out.data.device_id, product, memory):
        return None
    return out if columns == n else out[:, :n].copy()


def _padded(codes: Array, rows: int, columns: int) -> Array:
    if not (rows or columns):
        return codes if codes.flags.c_contiguous else codes.copy()
    out = _backend(codes).zeros((codes.shape[0] + rows, codes.shape[1] + columns), codes.dtype)
    out[: codes.shape[0], : codes.shape[1]] = codes
    return out


def takes_bias(bias: Array | None, dtype: DType) -> bool:
    """Whether `multiply` adds this bias to a result in `dtype`: None, or one of its 16-bit dtype."""
    return bias is None or (bias.dtype == dtype and dtype in LOW and bool(bias.flags.c_contiguous))


def scale_layout(scales: Array, mode: ScaleMode, rows: int, height: int) -> Array:
    """Scales [ceil(rows / height), n] of blocks of `height` rows as `mode` wants them: float32, of MX and NV uint8."""
    if mode is ScaleMode.OUTER:
        return _each_row(scales.reshape(-1, 1), rows, height).reshape(-1)
    if mode is ScaleMode.STRIP:
        return scales.T.copy()
    if mode is ScaleMode.SQUARE:
        return _padded(scales, 0, -scales.shape[1] % 4)
    if mode is ScaleMode.SCALAR:
        return scales
    # Tiles of 128 rows and 4 columns, row by row; in a tile rows 32 apart are neighbours.
    scales = _each_row(scales, rows, height)
    tiled = _padded(scales, -scales.shape[0] % 128, -scales.shape[1] % 4)
    split = tiled.reshape(tiled.shape[0] // 128, 4, 32, tiled.shape[1] // 4, 4)
    return split.transpose(0, 3, 2, 1, 4).copy().reshape(-1)


def _each_row(scales: Array, rows: int, height: int) -> Array:
    """Scales of blocks of rows, one row for each of `rows`."""
    return scales if height == 1 else scales.repeat(height, 0)[:rows]


def _address(array: Array | None) -> int:
    return 0 if array is None else int(array.data.ptr)


def _backend(array: Array) -> Any:
    return backends.backend_of(array)

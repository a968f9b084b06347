"""Operands below 16 bits of an emulated cublasLt: what NVIDIA's documentation asks of them, and their values.

The tables are those of cublasLt 13, "Narrow Precision Data Types Usage" and "cublasLtMatmul"; scales are read where the
formulas of "Scaling Factors Layouts" say that they lie.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from ampkit.backends.cuda.libs.blas import Compute, Epilogue, Memory, Product, ScaleMode
from ampkit.base.dtypes import bfloat16, float4_e2m1fn_x2, float8_e4m3fn, float8_e5m2, float16, float32

_FLOAT8 = (float8_e4m3fn, float8_e5m2)
_SINCE = {  # the compute capabilities of each mode, and the first cublasLt
    ScaleMode.SCALAR: (lambda card: card >= (8, 9), 110800),
    ScaleMode.NV: (lambda card: card >= (10, 0), 120800),
    ScaleMode.MX: (lambda card: card >= (10, 0), 120800),
    ScaleMode.OUTER: (lambda card: card == (9, 0), 120900),
    ScaleMode.STRIP: (lambda card: card == (9, 0), 120900),
    ScaleMode.SQUARE: (lambda card: card == (9, 0), 120900),
}
_ALIKE = (ScaleMode.SCALAR, ScaleMode.NV, ScaleMode.MX, ScaleMode.OUTER)  # modes that both operands must have
_BLOCK = {ScaleMode.NV: 16, ScaleMode.MX: 32, ScaleMode.STRIP: 128, ScaleMode.SQUARE: 128}


def _bytes_of(matrix: Any, count: int) -> int:
    return count // 2 if matrix.dtype == float4_e2m1fn_x2 else count * matrix.dtype.itemsize


def check(product: Product, memory: Memory, capability: tuple[int, int], version: int) -> None:
    """Hold a description of a product of operands below 16 bits to what cublasLt asks of one."""
    a, b, _, d = product[:4]
    assert product.scales is not None and product.transposed == (True, False) and product.compute is Compute.FLOAT32
    for mode in product.scales:
        on, since = _SINCE[mode]
        assert on(capability) and version >= since, f"{mode!r} on {capability} by {version}"
    first, second = product.scales
    assert first is second if {first, second} & {*_ALIKE} else {first, second} != {ScaleMode.SQUARE}
    narrow = (float4_e2m1fn_x2,) if first is ScaleMode.NV else _FLOAT8
    assert a.dtype in narrow and b.dtype in narrow and not a.dtype == b.dtype == float8_e5m2
    assert d.dtype in (bfloat16, float16, float32) and d.batch == 1
    assert product.epilogue is Epilogue.NONE or (product.epilogue is Epilogue.BIAS and d.dtype != float32)
    for matrix in (a, b, d):
        assert _bytes_of(matrix, matrix.rows) % 16 == _bytes_of(matrix, matrix.leading) % 16 == 0
    assert all(nbytes >= 16 for nbytes in product.alignment[:4])
    if {first, second} & {ScaleMode.STRIP, ScaleMode.SQUARE}:
        assert not (a.columns % 4 or b.columns % 4)
    for mode, nbytes in zip(product.scales, product.alignment[6:], strict=True):
        least = 4 if mode in (ScaleMode.SCALAR, ScaleMode.OUTER) else 16
        assert nbytes >= least or (mode is ScaleMode.SCALAR and nbytes == 0)


def _array(address: int, dtype: Any, count: int) -> np.ndarray[Any, Any]:
    return np.frombuffer((ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address), dtype)


def _scale_array(mode: ScaleMode, address: int, rows: int, depth: int) -> np.ndarray[Any, Any] | None:
    """The scales of an operand [rows, depth] as they lie in memory."""
    if not address:
        return None
    blocks = -(-depth // _BLOCK.get(mode, depth))
    if mode in (ScaleMode.MX, ScaleMode.NV):
        return _array(address, np.uint8, -(-rows // 128) * 128 * (-(-blocks // 4) * 4))
    padded = -(-blocks // 4) * 4
    count = {ScaleMode.SCALAR: 1, ScaleMode.OUTER: rows, ScaleMode.STRIP: rows * blocks}
    return _array(address, np.float32, count.get(mode, -(-rows // 128) * padded))


def scale_arrays(product: Product, memory: Memory) -> list[np.ndarray[Any, Any]]:
    """The memory that holds the scales."""
    assert product.scales is not None
    given = zip(product.scales, memory[6:], product[:2], strict=True)
    found = [_scale_array(mode, at, matrix.columns, matrix.rows) for mode, at, matrix in given]
    return [each for each in found if each is not None]


def _spread(mode: ScaleMode, address: int, rows: int, depth: int) -> Any:
    """A scale for each value of an operand [rows, depth]."""
    held = _scale_array(mode, address, rows, depth)
    if held is None:
        return 1.0
    row, column = np.arange(rows)[:, None], np.arange(depth)[None] // _BLOCK.get(mode, depth)
    blocks = -(-depth // _BLOCK.get(mode, depth))
    if mode is ScaleMode.SCALAR:
        return held.astype(float)
    if mode is ScaleMode.OUTER:
        return held.astype(float)[:, None]
    if mode is ScaleMode.STRIP:
        return held.astype(float)[column * rows + row]
    if mode is ScaleMode.SQUARE:
        return held.astype(float)[row // 128 * (-(-blocks // 4) * 4) + column]
    tiles = -(-blocks // 4)
    tile, outer = row // 128 * tiles + column // 4, row % 128
    codes = held[tile * 512 + outer % 32 * 16 + outer // 32 * 4 + column % 4]
    dtype = ml_dtypes.float8_e8m0fnu if mode is ScaleMode.MX else ml_dtypes.float8_e4m3fn
    return codes.view(dtype).astype(float)


def _values(matrix: Any, address: int) -> Any:
    """The values of codes: [rows, depth] of a matrix that is [depth, rows] in BLAS's terms."""
    rows, depth = matrix.columns, matrix.rows
    if matrix.dtype == float4_e2m1fn_x2:
        held = _array(address, np.uint8, rows * depth // 2).reshape(rows, depth // 2)
        codes = np.stack([held & 15, held >> 4], 2).reshape(rows, depth)
        return codes.view(ml_dtypes.float4_e2m1fn).astype(float)
    assert matrix.leading == depth
    held = _array(address, np.uint8, rows * depth).view(getattr(ml_dtypes, matrix.dtype.names[0]))
    return held.reshape(rows, depth).astype(float)


def values(product: Product, memory: Memory) -> list[Any]:
    """The values of op(a) [1, M, K] and b [1, K, N], times their scales."""
    assert product.scales is not None
    found = [
        _values(matrix, at) * _spread(mode, scales, matrix.columns, matrix.rows)
        for matrix, at, mode, scales in zip(product[:2], memory[:2], product.scales, memory[6:], strict=True)
    ]
    return [found[0][None], found[1].T[None]]

"""CPU kernels of quantized matrices (quantization.cpp, dequantization.cpp) and of their products.

Codes lie in memory as the matrix did, so a transpose is quantized without moving anything. Values of 8-bit floats, also
times scales that are powers of two, and values of E2M1 times E4M3 are exact in bfloat16: products decode them and run
on the 16-bit units, where the CPU has such; the other scales are factors of whole rows, which multiply the sums.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.cpu.native.arrays import Function, HostArray, empty, supported
from ampkit.backends.cpu.native.library import library
from ampkit.backends.cpu.onednn import int8_matmul
from ampkit.backends.cpu.onednn.gemm import gemm, scaled_into
from ampkit.backends.cpu.onednn.library import has_fast_matmul
from ampkit.base.dtypes import DType, bfloat16, float32, int8, uint8
from ampkit.base.errors import UnsupportedError
from ampkit.base.formats import FORMATS
from ampkit.core.policy.recipe import E2M1, INT8, Quantization
from ampkit.kernels.shared.linalg import register_quantization
from ampkit.ops.linalg.quantization import (
    DTYPES,
    HADAMARD,
    Draw,
    Quantized,
    block_extents,
)

# The numbers of `Format` and `Scaling` in include/quantized.h.
_FORMATS = {INT8: -1, **{name: FORMATS[dtype].number for name, dtype in DTYPES.items()}}
_SCALINGS = {"float32": 0, "power_of_2": 1, "float8_e8m0fnu": 2, "float8_e4m3fn": 3}
_IN_8_BITS = ("float8_e8m0fnu", "float8_e4m3fn")
_EXACT_TERMS = 1024  # products of int8 are at most 2 ** 14, and float32 holds integers to 2 ** 24
_DOWN, _HADAMARD, _STOCHASTIC, _SCALED = 1, 2, 4, 8

_quantize = Function("quantize_matrix", "aaaaaaaiiiiifuu", ctypes.c_int64)
_quantize_twice = Function("quantize_matrix_twice", "a" + 2 * "aaaaiiiiifuu", ctypes.c_int64)
_dequantize = Function("dequantize_matrix", "aaaiiiiif", ctypes.c_int64)
_scale_sums = Function("scale_sums", "aaaaad")


def _quantized(
    array: HostArray, how: Quantization, scale: HostArray | None, draw: Draw | None, read_soon: bool = False
) -> Any:
    down = _is_down(array)
    way = _way(array.shape, how, scale, draw, down, read_soon)
    largest = None if scale is None else np.empty((1, 1), float32)
    codes, scales, factor, values = way.arrays
    in_memory = array.T if down else array
    if _quantize(codes, scales, factor, largest, values, in_memory, scale, *way.numbers):
        if codes is None:
            return _quantized(array, how, scale, draw)
        way = way._replace(values=None)
    codes, scales, factor, values = way.results
    return codes, scales, factor, largest, values


class _Way(NamedTuple):
    """A way to quantize a matrix: memory for what becomes of it, in the order of the matrix, and a kernel's arguments.

    down: the matrix lies in memory as its transpose.
    """

    codes: HostArray | None
    scales: HostArray
    factor: HostArray | None
    values: HostArray | None
    down: bool
    numbers: tuple[Any, ...]

    @property
    def arrays(self) -> tuple[HostArray | None, ...]:
        """As kernels take them."""
        return None if self.codes is None else self.codes.view(uint8), self.scales, self.factor, self.values

    @property
    def results(self) -> tuple[HostArray | None, ...]:
        """As the matrix has them."""
        turned = [each.T if self.down and each is not None else each for each in (self.codes, self.scales, self.values)]
        return turned[0], turned[1], self.factor, turned[2]


def _way(
    shape: tuple[int, int], how: Quantization, scale: HostArray | None, draw: Draw | None, down: bool, read_soon: bool
) -> _Way:
    shape = shape[0], shape[1] + (-shape[1] % HADAMARD if how.hadamard else 0)
    blocks = p, q = _blocks(how, shape, down)
    rows, columns = shape[::-1] if down else shape
    codes = values = factor = None
    if scale is None:
        scales = np.empty((-(-rows // p), -(-columns // q)), uint8 if how.scale in _IN_8_BITS else float32)
        factor = np.empty((1, 1), float32) if how.scale == "float8_e4m3fn" else None
    else:
        scales = np.divide(np.float32(1), scale)
    whole_rows = block_extents(how, shape)[1] >= shape[1]
    if read_soon and how.format != INT8 and (how.scale != "float32" or whole_rows) and has_fast_matmul(bfloat16):
        values = empty((rows, columns), bfloat16)
    if values is None or how.symmetric:
        codes = _codes(how, rows, columns, down)
    flags = down * _DOWN | how.hadamard * _HADAMARD | how.stochastic * _STOCHASTIC | (how.scale != "float32") * _SCALED
    numbers = _FORMATS[how.format], _SCALINGS[how.scale], *blocks, flags, how.epsilon, *(draw or (0, 0))
    return _Way(codes, scales, factor, values, down, numbers)


def _is_down(array: HostArray) -> bool:
    # Whether the columns are contiguous, and the rows not.
    return array.strides[1] != array.itemsize == array.strides[0]


def _one_reading(
    array: HostArray, first: Quantization, second: Quantization, scale: HostArray | None, *rest: Any
) -> bool:
    is_view = first == second and first.symmetric and first.format != E2M1
    return not is_view and scale is None and _takes(array)


def _both(
    array: HostArray, first: Quantization, second: Quantization, scale: None, draws: Sequence[Draw | None],
    read_soon: tuple[bool, bool],
) -> Any:  # fmt: skip
    both, down = ((array, first), (array.T, second)), _is_down(array)
    ways = [
        _way(matrix.shape, how, None, draw, each_down, soon)
        for (matrix, how), draw, each_down, soon in zip(both, draws, (down, not down), read_soon, strict=True)
    ]
    arguments = [argument for way in ways for argument in (*way.arrays, *way.numbers)]
    beyond = _quantize_twice(array.T if down else array, *arguments)
    found: list[Any] = []
    for bit, (way, (matrix, how), draw) in enumerate(zip(ways, both, draws, strict=True)):
        if beyond >> bit & 1 and way.codes is None:
            codes, scales, factor, _, values = _quantized(matrix, how, None, draw)
            found.append((codes, scales, factor, values))
        else:
            found.append((way._replace(values=None) if beyond >> bit & 1 else way).results)
    return *found, None


def _codes(how: Quantization, rows: int, columns: int, down: bool) -> HostArray:
    # Memory for codes, in the order of the matrix, of which 4-bit ones share bytes along the axis that is summed over.
    if how.format == E2M1:
        rows, columns = (-(-rows // 2), columns) if down else (rows, -(-columns // 2))
    return empty((rows, columns), int8 if how.format == INT8 else uint8)


def _blocks(how: Quantization, shape: tuple[int, int], down: bool) -> tuple[int, int]:
    # The extents of a block in the order of memory, at most those of the matrix.
    r, c = (min(extent, whole) for extent, whole in zip(block_extents(how, shape), shape, strict=True))
    return (c, r) if down else (r, c)


def _takes(array: HostArray) -> bool:
    return array.ndim == 2 and array.size > 0 and supported(array)


def _is_known(codes: HostArray, *rest: Any) -> bool:
    return codes.ndim == 2 and library() is not None


def _decode(quantized: Quantized, dtype: DType, scaled: bool = True) -> tuple[HostArray, bool]:
    """The values of codes, times their scales if `scaled`, in float32 also times the factor.

    -> them, and whether bfloat16 does not hold one of them.
    """
    codes, scales, how = quantized.codes, quantized.scales, quantized.how
    down = not codes.flags.c_contiguous and codes.flags.f_contiguous
    codes, scales = np.ascontiguousarray(codes.T if down else codes), np.ascontiguousarray(scales.T if down else scales)
    out = empty(quantized.shape[::-1] if down else quantized.shape, dtype)
    factor = 1.0 if quantized.factor is None or not scaled else float(quantized.factor[0, 0])
    beyond = _dequantize(
        out, codes.view(uint8), scales if scaled else None,
        _FORMATS[how.format], _SCALINGS[how.scale], *_blocks(how, quantized.shape, down), down, factor,
    )  # fmt: skip
    return out.T if down else out, bool(beyond)


class _Operand(NamedTuple):
    """An operand of a product: values that are multiplied by a factor of each row, or one for all of them."""

    values: HostArray
    rows: HostArray | None
    factor: float


def _operand(quantized: Quantized, dtype: DType) -> _Operand | None:
    """None where bfloat16 does not hold the values, and factors of rows do not make up for it."""
    how, whole_rows = quantized.how, quantized.scales.shape[1] == 1
    factor = 1.0 if quantized.factor is None else float(quantized.factor[0, 0])
    may_be_factors = how.scale in ("float32", "power_of_2") and whole_rows
    if how.scale != "float32" and (dtype == bfloat16 or not may_be_factors):
        kept = quantized.values
        values, beyond = (kept, False) if kept is not None else _decode(quantized, dtype, True)
        if dtype == float32:
            return _Operand(values, None, 1.0)
        if not beyond:
            return _Operand(values, None, factor)
    if not may_be_factors:
        return None
    kept = quantized.values if how.scale == "float32" else None
    values = _decode(quantized, dtype, False)[0] if kept is None else kept
    if quantized.scales.size == 1:
        return _Operand(values, None, factor * float(quantized.scales[0, 0]))
    return _Operand(values, _for_each(quantized), factor)


def _wide(quantized: Quantized) -> HostArray:
    # The dequantized values in float32, also where codes were left out.
    if quantized.codes is not None or quantized.values is None:
        return _decode(quantized, float32, True)[0]
    values: HostArray = quantized.values.astype(float32)
    if quantized.how.scale == "float32":
        values *= _for_each(quantized)[:, None]
    return values if quantized.factor is None else values * quantized.factor


def _multiplied(
    a: Quantized, b: Quantized, dtype: DType, bias: HostArray | None, buffer: HostArray | None, of_integers: bool
) -> HostArray:
    shape = a.shape[0], b.shape[0]
    out = empty(shape, dtype) if buffer is None or (buffer.shape, buffer.dtype) != (shape, dtype) else buffer
    if 0 in (*a.shape, *b.shape):  # nothing to sum
        out[...] = 0 if bias is None else bias
        return out
    if of_integers:
        return _integer_product(out, a, b, bias)
    try:
        return _product(out, a, b, bias)
    except UnsupportedError:
        if a.codes is not None and b.codes is not None:
            raise  # to the reference
        _scale_sums(out, _wide(a) @ _wide(b).T, None, None, bias, 1.0)
        return out


def _product(out: HostArray, a: Quantized, b: Quantized, bias: HostArray | None) -> HostArray:
    compute = bfloat16 if has_fast_matmul(bfloat16) else float32
    left = _operand(a, compute)
    right = left and _operand(b, compute)
    if left is None or right is None:
        return _rounded_once(out, _Operand(_wide(a), None, 1.0), _Operand(_wide(b), None, 1.0), bias)
    factor = left.factor * right.factor
    if compute == bfloat16 and left.rows is right.rows is None:
        if factor == 1:
            return gemm(left.values, right.values.T, out.dtype, out, bias)
        if 2.0**-100 < factor < 2.0**100 and scaled_into(left.values, right.values.T, out, bias, factor):
            return out
    return _rounded_once(out, left, right, bias)


def _rounded_once(out: HostArray, left: _Operand, right: _Operand, bias: HostArray | None) -> HostArray:
    # A float32 product, scaled and rounded to `out` afterwards: not every CPU has one of float32 into 16 bits.
    factor = left.factor * right.factor
    if out.dtype == float32 and factor == 1 and left.rows is right.rows is None:
        return gemm(left.values, right.values.T, float32, out, bias)
    _scale_sums(out, gemm(left.values, right.values.T, float32, out), left.rows, right.rows, bias, factor)
    return out


def _integer_product(out: HostArray, a: Quantized, b: Quantized, bias: HostArray | None) -> HostArray:
    sums = int8_matmul.matmul(a.codes, b.codes.T)
    sums = _sums_by_float32(a.codes, b.codes.T) if sums is None else sums
    _scale_sums(out, sums, _for_each(a), _for_each(b), bias, 1.0)
    return out


def _sums_by_float32(a: HostArray, b: HostArray) -> HostArray:
    """a [M, K] @ b [K, N] of int8, exact sums, rounded once to float32, on a CPU without products of int8."""
    if a.shape[1] <= _EXACT_TERMS:
        return gemm(a.astype(float32), b.astype(float32), float32)
    sums = np.zeros((a.shape[0], b.shape[1]), np.float64)
    for k in range(0, a.shape[1], _EXACT_TERMS):
        part = slice(k, k + _EXACT_TERMS)
        sums += gemm(a[:, part].astype(float32), b[part].astype(float32), float32)
    return sums.astype(float32)


def _for_each(quantized: Quantized) -> HostArray:
    # A factor for each row.
    height = block_extents(quantized.how, quantized.shape)[0]
    return quantized.scales[:, 0].repeat(height)[: quantized.shape[0]] if height > 1 else quantized.scales[:, 0]


register_quantization(
    "cpu", _quantized, _both, lambda matrix, dtype: _decode(matrix, dtype)[0], _multiplied,
    lambda array, *rest: _takes(array), _one_reading,
    lambda codes, *rest: _is_known(codes) and codes.size > 0, _is_known,
)  # fmt: skip

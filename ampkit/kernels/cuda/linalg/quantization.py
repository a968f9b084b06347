"""CUDA kernels of quantized matrices (quantization.cu) and of their products.

Codes lie contiguous along the axis that a product sums over, as FP8 tensor cores want them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, to_float32
from ampkit.backends.cuda.libs import gemm, narrow
from ampkit.backends.cuda.libs.blas import ScaleMode
from ampkit.backends.cuda.libs.narrow import Codes
from ampkit.backends.cuda.libs.narrow_paths import Path, path_of
from ampkit.base.dtypes import Array, DType, bfloat16, float32
from ampkit.base.errors import UnsupportedError
from ampkit.core.policy.recipe import Quantization
from ampkit.kernels.shared.linalg import register_quantization
from ampkit.ops.linalg.quantization import (
    DTYPES,
    Draw,
    Quantized,
    block_extents,
)

from . import quantization_launches as launches
from .quantization_launches import RowFactors


def _quantized(array: Array, how: Quantization, scale: Array | None, draw: Draw | None, read_soon: bool = False) -> Any:
    found, _, largest = launches.quantize(array, how, None, scale, (draw, None))
    return *(found or ()), largest


def _one_reading(array: Array, first: Quantization, second: Quantization, *rest: Any) -> bool:
    alike = all(getattr(first, name) == getattr(second, name) for name in ("format", "scale", "epsilon", "delayed"))
    return alike and launches.has_kernel(array, first) and launches.has_kernel(array, second)


def _both(
    array: Array, first: Quantization, second: Quantization, scale: Array | None, draws: Any, read_soon: Any
) -> Any:
    return launches.quantize(array, first, second, scale, draws)


def _is_known(codes: Array, quantized: Quantized, *rest: Any) -> bool:
    return codes.ndim == 2 and 0 not in quantized.shape


def _decoded(quantized: Quantized, dtype: DType, scaled: bool = True, factor: bool = True) -> Array:
    how, block = quantized.how, block_extents(quantized.how, quantized.shape)
    scales, of_all = quantized.scales if scaled else None, quantized.factor if factor else None
    return launches.dequantize(quantized.codes, scales, of_all, how, block, quantized.shape, dtype)


def _multiplied(
    a: Quantized, b: Quantized, dtype: DType, bias: Array | None, buffer: Array | None, of_integers: bool
) -> Array:
    backend: Any = backends.backend_of(a.codes)
    result = _Result(dtype, bias, buffer)
    if of_integers:
        return _integer_product(a, b, result)
    path = path_of(a.how, b.how, backend.capability, backend.cublaslt.version)
    if path.modes is not None:
        out = _narrow_product(a, b, path, result)
        if out is not None:
            return out
    return _wide_product(a, b, result)


class _Result(NamedTuple):
    """What a product returns: its dtype, a bias for each column or None, and memory that it may be written to."""

    dtype: DType
    bias: Array | None
    buffer: Array | None

    def of_sums(
        self,
        sums: Array,
        rows: RowFactors | None = None,
        columns: RowFactors | None = None,
        factors: Sequence[Array] = (),
    ) -> Array:
        """The sums, times their factors, and the bias."""
        return launches.scale_sums(sums, self.dtype, rows, columns, factors, to_float32(self.bias), self.buffer)


def _row_factors(quantized: Quantized) -> RowFactors:
    return RowFactors(quantized.scales.reshape(-1), block_extents(quantized.how, quantized.shape)[0])


def _integer_product(a: Quantized, b: Quantized, result: _Result) -> Array:
    sums = narrow.integer_product(a.codes, b.codes)
    if sums is None:
        raise UnsupportedError
    return result.of_sums(sums, _row_factors(a), _row_factors(b))


def _codes(quantized: Quantized, mode: ScaleMode, path: Path) -> Codes:
    (rows, columns), scales = quantized.shape, None
    if not path.then_scaled:
        height = block_extents(quantized.how, quantized.shape)[0]
        scales = narrow.scale_layout(contiguous(quantized.scales), mode, rows, height)
    return Codes(contiguous(quantized.codes), DTYPES[quantized.how.format], columns, mode, scales)


def _narrow_product(a: Quantized, b: Quantized, path: Path, result: _Result) -> Array | None:
    """The product of the codes themselves; None where cublasLt has no algorithm for its sizes."""
    assert path.modes is not None
    left, right = [_codes(each, mode, path) for each, mode in zip((a, b), path.modes, strict=True)]
    factors = [each.factor for each in (a, b) if each.factor is not None]
    of_rows, of_columns = (_row_factors(a), _row_factors(b)) if path.then_scaled else (None, None)
    shape = a.shape[0], b.shape[0]
    if not (factors or path.then_scaled) and narrow.takes_bias(result.bias, result.dtype):
        out = launches.output(result.buffer, shape, result.dtype, a.codes)
        if narrow.multiply(left, right, out, result.bias):
            return out
    sums = launches.output(None, shape, float32, a.codes)
    return result.of_sums(sums, of_rows, of_columns, factors) if narrow.multiply(left, right, sums) else None


class _Operand(NamedTuple):
    """bfloat16 values, which are multiplied by a factor of each row, if there is one, and by one for all of them."""

    values: Array
    rows: RowFactors | None
    factor: Array | None


def _operand(quantized: Quantized) -> _Operand | None:
    """A 16-bit operand, in which bfloat16 rounds nothing but what is below its normal numbers; None if it would.

    The values of 8-bit floats and integers are exact in it, also times a power of two, and those of E2M1 times E4M3.
    """
    how, scales = quantized.how, quantized.scales
    if how.scale == "float32" or how.delayed:
        if scales.shape[1] > 1:
            return None
        values = _decoded(quantized, bfloat16, False, False)
        return _Operand(values, None, scales) if scales.size == 1 else _Operand(values, _row_factors(quantized), None)
    return _Operand(_decoded(quantized, bfloat16, True, False), None, quantized.factor)


def _wide_product(a: Quantized, b: Quantized, result: _Result) -> Array:
    """The product of the values, in bfloat16 where that holds them."""
    left = _operand(a)
    right = left and _operand(b)
    if left is None or right is None:
        return _product(_decoded(a, float32), _decoded(b, float32), result)
    factors = [factor for factor in (left.factor, right.factor) if factor is not None]
    if left.rows is right.rows is None and not factors:
        return _product(left.values, right.values, result)
    sums = _product(left.values, right.values, _Result(float32, None, None))
    return result.of_sums(sums, left.rows, right.rows, factors)


def _product(a: Array, b: Array, result: _Result) -> Array:
    if not gemm.fits(a):
        raise UnsupportedError
    bias, dtype = result.bias, result.dtype
    if bias is None or (bias.dtype == gemm.output_dtype(a.dtype, dtype) == dtype):
        return gemm.product(a, b.T, dtype, result.buffer, bias)
    return result.of_sums(gemm.product(a, b.T, float32))


register_quantization(
    "cuda", _quantized, _both, _decoded, _multiplied,
    lambda array, how, *rest: launches.has_kernel(array, how), _one_reading, _is_known,
    lambda codes, a, b, *rest: _is_known(codes, a) and _is_known(b.codes, b),
)  # fmt: skip

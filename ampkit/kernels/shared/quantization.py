"""Registers codes of quantized matrices, their values, and their products, which are exact for rows of integers."""

from __future__ import annotations

from typing import Any

from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.policy.recipe import INT8
from ampkit.ops.linalg.quantization import Quantized, dequantize_, quantize_, scaled_mm_

from .registration import on


def register_quantization(
    backend: str, quantized: Any, decoded: Any, multiplied: Any, quantizes: Any, decodes: Any, multiplies: Any
) -> None:
    """quantized: called as `quantize_`. decoded(matrix, dtype) -> its values. multiplied(a, b, dtype, bias, buffer,
    whether the sums are of integers, with one scale for each row); the predicates are called as the primitives.
    """

    def multiply(
        codes: Array, a: Quantized, b: Quantized, dtype: DType, bias: Array | None, buffer: Array | None = None
    ) -> Array:
        of_integers = a.how.format == INT8 and a.how.block[1] is b.how.block[1] is None
        return multiplied(a, b, dtype, bias, buffer, of_integers)

    on(quantize_, backend, quantized, quantizes)
    on(dequantize_, backend, lambda codes, matrix: decoded(matrix, float32), decodes)
    on(scaled_mm_, backend, multiply, multiplies)

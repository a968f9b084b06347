"""Formats below 16 bits: how a number becomes a code, and a code a number, as PyTorch casts them.

A code is sign, exponent and mantissa in one byte, or in four bits of one. `encode_reference` and `decode_reference` are
plain array code on NumPy and CuPy arrays: the truth that kernels are tested against, which itself is tested against
ml_dtypes and PyTorch. Formats: OCP 8-bit Floating Point Specification 1.0 (2023), OCP Microscaling Formats 1.0 (2023),
and for those named `fnuz` Noune et al. 2022, arXiv:2206.02915.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .dtypes import (
    NARROW,
    Array,
    DType,
    float4_e2m1fn_x2,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float32,
    float64,
    name_of,
    uint8,
)
from .errors import DTypeError


class Format(NamedTuple):
    """How a format stores magnitudes: mantissa bits below exponent bits, whose bias is `bias`.

    number: as kernels know it. largest: the code of the largest finite magnitude. overflow: the code of what is larger,
    without `saturate`. nan: that of NaN. sign: the bit of the sign, 0 where there is none. saturates: whether
    `Tensor.to` does. values: the dtype of ml_dtypes.
    """

    number: int
    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    sign: int
    saturates: bool
    values: Any

    @property
    def unsigned_zero(self) -> bool:
        """Whether the code of -0 is that of NaN, so that -0 becomes 0."""
        return self.nan == 0x80

    @property
    def powers_of_two(self) -> bool:
        """Whether the format holds powers of two alone, without sign and zero: the scales of blocks."""
        return self.mantissa == 0


FORMATS: dict[DType, Format] = {
    float8_e4m3fn: Format(0, 3, 7, 0x7E, 0x7F, 0x7F, 0x80, True, ml_dtypes.float8_e4m3fn),
    float8_e5m2: Format(1, 2, 15, 0x7B, 0x7C, 0x7F, 0x80, False, ml_dtypes.float8_e5m2),
    float8_e4m3fnuz: Format(2, 3, 8, 0x7F, 0x80, 0x80, 0x80, False, ml_dtypes.float8_e4m3fnuz),
    float8_e5m2fnuz: Format(3, 2, 16, 0x7F, 0x80, 0x80, 0x80, False, ml_dtypes.float8_e5m2fnuz),
    float8_e8m0fnu: Format(4, 0, 127, 0xFE, 0xFF, 0xFF, 0, False, ml_dtypes.float8_e8m0fnu),
    float4_e2m1fn_x2: Format(5, 1, 1, 0x7, 0x7, 0x8, 0x8, True, ml_dtypes.float4_e2m1fn),
}
_INFINITY = 0x7F800000
CURE = "cast it: x.to(ampkit.bfloat16)"  # for what asks for arithmetic


def is_packed(dtype: DType) -> bool:
    """Whether a byte of `dtype` holds two values, that of the lower index in its low four bits."""
    return dtype == float4_e2m1fn_x2


def encode_reference(values: Array, dtype: DType, saturate: bool, words: Array | None = None) -> Array:
    """The codes of floating-point `values` [...] in `dtype`, as uint8: [...], of a packed format [..., n / 2].

    saturate: what is beyond the largest magnitude, and inf, becomes the largest; else inf or NaN, of a format without
    either the largest. words: None rounds to nearest, ties to even; uint32 [...], random bits, round up where the
    fraction of a unit in the last place + word / 2^32 reaches 1: with the probability of the fraction.
    """
    chosen = FORMATS[dtype]
    bits = _float32_bits(values)
    magnitude = np.bitwise_and(bits, 0x7FFFFFFF)
    code = _rounded_scale(magnitude, words) if chosen.powers_of_two else _rounded(magnitude, chosen, words)
    code = np.where(code > chosen.largest, chosen.largest if saturate else chosen.overflow, code)
    code = np.where(magnitude > _INFINITY, chosen.nan, code).astype(uint8)
    negative = np.right_shift(bits, 31) == 1
    if chosen.unsigned_zero:
        negative = negative & (code != 0) & (code != chosen.nan)
    code = np.where(negative, np.bitwise_xor(code, chosen.sign), code).astype(uint8)
    return np.bitwise_or(code[..., ::2], np.left_shift(code[..., 1::2], 4)) if is_packed(dtype) else code


def _rounded(magnitude: Array, chosen: Format, words: Array | None) -> Array:
    # In units of the last place, with 32 bits of fraction, rounded up: the integer part and the exponent make the code.
    least = 128 - chosen.bias  # the biased exponent in float32 of the smallest normal
    exponent = np.maximum(np.right_shift(magnitude, 23), 1)
    normal = np.bitwise_or(np.bitwise_and(magnitude, 0x7FFFFF), 1 << 23)
    significand: Any = np.where(magnitude < 1 << 23, magnitude, normal)
    field = np.maximum(exponent, least)
    shift = np.minimum(23 - chosen.mantissa + (field - exponent), 63).astype(np.uint64)
    below_one = np.left_shift(np.ones_like(shift), shift) - 1
    units = np.right_shift(np.left_shift(significand.astype(np.uint64), 32) + below_one, shift)
    up = 0x7FFFFFFF + np.bitwise_and(np.right_shift(units, 32), 1) if words is None else words.astype(np.uint64)
    return np.right_shift(units + up, 32).astype(np.uint32) + np.left_shift(field - least, chosen.mantissa)


def _rounded_scale(magnitude: Array, words: Array | None) -> Array:
    # Code 0 is 2^-127, a subnormal of float32; what lies half way goes up, above the smallest.
    if words is None:
        return np.right_shift(magnitude + 0x3FFFFF + (magnitude >= 1 << 23), 23)
    above = np.where(magnitude > 1 << 22, (magnitude - (1 << 22)) * 2, 0)
    linear = np.where(magnitude < 1 << 23, above, magnitude)
    return np.right_shift(linear + np.right_shift(words, 9), 23)


def _float32_bits(values: Array) -> Array:
    """The bits of float32; of float64 rounded to odd, which the next rounding cannot tell from float64."""
    if values.dtype != float64:
        return values.astype(float32).view(np.uint32)
    wide = values.view(np.uint64)
    sign = np.left_shift(np.right_shift(wide, 63).astype(np.uint32), 31)
    exponent = np.bitwise_and(np.right_shift(wide, 52), 0x7FF).astype(np.int64) - 896
    mantissa = np.bitwise_and(wide, (1 << 52) - 1)
    significand = np.where(exponent > -896, np.bitwise_or(mantissa, 1 << 52), mantissa)
    shift = np.minimum(29 + np.maximum(1 - exponent, 0), 63).astype(np.uint64)
    kept: Any = np.right_shift(significand, shift)
    inexact = np.left_shift(kept, shift) != significand
    kept = np.where(exponent > 0, np.bitwise_and(kept, 0x7FFFFF), kept)
    bits = np.left_shift(np.maximum(exponent, 0), 23) + kept.astype(np.int64)
    bits = np.bitwise_or(bits, inexact)
    special = np.where(mantissa != 0, _INFINITY + (1 << 22), _INFINITY)
    bits = np.where(exponent == 0x7FF - 896, special, np.where(exponent >= 255, _INFINITY - 1, bits))
    return np.bitwise_or(bits.astype(np.uint32), sign)


def decode_reference(codes: Array, dtype: DType, table: Array) -> Array:
    """The values of uint8 `codes` [...], of a packed format [..., 2 n], in the dtype of `table`: `values_of(dtype)`."""
    found = np.take(table, codes.astype(np.int64), axis=0)
    return found.reshape(values_shape(codes.shape, dtype))


@cache
def values_of(dtype: DType) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The value of each byte as float32: [256], of a packed format [256, 2]."""
    byte = np.arange(256, dtype=np.uint8)
    codes = np.stack([byte & 15, byte >> 4], 1) if is_packed(dtype) else byte
    return codes.view(FORMATS[dtype].values).astype(np.float32)


def codes_shape(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """The shape of the codes of values of `shape`."""
    return (*shape[:-1], shape[-1] // 2) if is_packed(dtype) else tuple(shape)


def values_shape(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """The shape of the values of codes of `shape`."""
    return (*shape[:-1], shape[-1] * 2) if is_packed(dtype) else tuple(shape)


def need_arithmetic(where: str, *values: Any) -> None:
    """Raise DTypeError where a tensor or an array among `values` is of a format below 16 bits."""
    for value in values:
        dtype = getattr(getattr(value, "array", value), "dtype", None)
        if dtype in NARROW:
            raise DTypeError(where, "a dtype with arithmetic", name_of(dtype), CURE)

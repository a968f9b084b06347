"""Quantized matrices: codes below 16 bits and their scales, and products of two of them.

A matrix [rows, columns] is quantized with the axis that a product sums over last, so `scaled_mm(a, b)` is a @ b.T. A
block of values shares one scale. Edge blocks are as large as the matrix leaves them, which is what padding with zeros
gives. A block that holds an infinity or NaN dequantizes to NaN, so that no overflow is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import (
    Array,
    DType,
    float4_e2m1fn_x2,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float32,
)
from ampkit.base.formats import FORMATS, decode_reference, encode_reference, values_of
from ampkit.core import random
from ampkit.core.casts import cast
from ampkit.core.dispatch import Primitive
from ampkit.core.policy.recipe import E2M1, E4M3, E5M2, INT8, LARGEST, Quantization

# The dtypes of codes and scales that are floating-point numbers below 16 bits.
DTYPES = {E4M3: float8_e4m3fn, E5M2: float8_e5m2, E2M1: float4_e2m1fn_x2, "float8_e8m0fnu": float8_e8m0fnu}
HADAMARD = 16  # the neighbours that are transformed together
# The signs of the random Hadamard transform in Transformer Engine's NVFP4 recipe, fixed for all tensors.
_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
Draw = tuple[int, int]  # the (seed, call) of a draw of random bits


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized matrix of `shape` [R, C], with blocks of extents [r, c].

    codes: [R, C] uint8 or int8; of a 4-bit format [R, (C + 1) // 2], the even column in the low bits. scales: what the
    values of each block are multiplied by, [ceil(R / r), ceil(C / c)], float32, or uint8 codes of the format how.scale.
    factor: float32 of shape [1, 1], a further factor of all values, or None. how: as it was quantized. values: [R, C],
    what the backend's products read, where `quantize` was asked for it; not to be kept. With them codes may be None.
    """

    codes: Any
    scales: Array
    factor: Array | None
    shape: tuple[int, int]
    how: Quantization
    values: Array | None = None

    @property
    def transposed(self) -> Quantized:
        """The transpose, of the same memory; of a matrix whose quantization is symmetric and not packed."""
        values = None if self.values is None else self.values.T
        return Quantized(self.codes.T, self.scales.T, self.factor, self.shape[::-1], self.how, values)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return int(self.codes.nbytes + self.scales.nbytes)


def quantize(
    array: Array, how: Quantization, scale: Array | None = None, read_soon: bool = False
) -> tuple[Quantized, Array | None]:
    """`array` [R, C] of a floating-point dtype, quantized, and where that is delayed its largest magnitude [1, 1].

    scale: what values are multiplied by, float32 [1, 1], where quantization is delayed. Stochastic rounding takes the
    next draw of the default random stream. A Hadamard transform pads the columns to a multiple of 16. read_soon: a
    product follows at once, so a kernel may return the values that it reads, too, and alone where `how` is not
    symmetric: then nothing but this product reads the result.
    """
    draw = random.default.take() if how.stochastic else None
    codes, scales, factor, largest, *values = quantize_(array, how, scale, draw, read_soon)
    columns = array.shape[1] + (-array.shape[1] % HADAMARD if how.hadamard else 0)
    return Quantized(codes, scales, factor, (array.shape[0], columns), how, *values), largest


def quantize_both(
    array: Array, first: Quantization, second: Quantization, scale: Array | None = None,
    read_soon: tuple[bool, bool] = (False, False),
) -> tuple[Quantized, Quantized, Array | None] | None:  # fmt: skip
    """`array` quantized by `first` and its transpose by `second`, as `quantize` does it, but in one reading.

    read_soon: of each, see `quantize`. Returns None where no kernel of the backend does so, or where one of them is a
    view of the other; no random bits have been taken then.
    """
    found = quantize_both_(array, first, second, scale, random.default.take, read_soon)
    if found is None:
        return None
    (rows, columns), (of_array, of_transpose, largest) = array.shape, found
    return _whole(of_array, (rows, columns), first), _whole(of_transpose, (columns, rows), second), largest


def _whole(parts: Any, shape: tuple[int, int], how: Quantization) -> Quantized:
    columns = shape[1] + (-shape[1] % HADAMARD if how.hadamard else 0)
    codes, scales, factor, *values = parts
    return Quantized(codes, scales, factor, (shape[0], columns), how, *values)


# A backend's kernel of it calls `take` for a draw of random bits, for the matrix first.
quantize_both_ = Primitive("quantize_both", "linalg.quantization", lambda *arguments: None)


def dequantize(quantized: Quantized) -> Array:
    """The values of a quantized matrix: [R, C] float32."""
    return dequantize_(quantized.codes, quantized)


def scaled_mm(
    a: Quantized, b: Quantized, dtype: DType, bias: Array | None = None, buffer: Array | None = None
) -> Array:
    """a [M, K] @ b [N, K].T + bias [N] -> [M, N] in `dtype`: exact products, float32 sums and scales, one rounding.

    int8 codes are summed in int32, exactly. buffer: where a kernel may write the result to.
    """
    more = () if buffer is None else (buffer,)
    return scaled_mm_(a.values if a.codes is None else a.codes, a, b, dtype, bias, *more)


# quantize


def quantize_reference(
    array: Array, how: Quantization, scale: Array | None, draw: Draw | None, read_soon: bool = False
) -> Any:
    values = cast(array, float32)
    values = hadamard(values) if how.hadamard else values
    extents = block_extents(how, values.shape)
    largest = _block_max(values, how)
    multiplier, scales, factor = _scales(how, largest) if scale is None else (scale, 1 / scale, None)
    values = _scaled(values, _spread(multiplier, extents, values.shape), how.format)
    if how.format == INT8:
        codes = np.rint(np.where(np.isfinite(values), values, 0)).astype(np.int8)
    else:
        codes = _encode(values, how.format, draw)
    return codes, scales, factor, None if scale is None else largest


quantize_ = Primitive("quantize", "linalg.quantization", quantize_reference)


def _scaled(values: Array, multipliers: Array, format: str) -> Array:
    # The products, finite ones limited to the format's range also where they overflow float32.
    with np.errstate(over="ignore", invalid="ignore"):
        found = values * multipliers
    top, bottom = np.float32(LARGEST[format]), np.float32(-128 if format == INT8 else -LARGEST[format])
    return np.where(np.isfinite(values), np.clip(found, bottom, top), found)


def block_extents(how: Quantization, shape: tuple[int, int]) -> tuple[int, int]:
    """The extents of a block of a matrix of this shape: those of `how`, the whole axis for None, at least 1."""
    rows, columns = how.block
    return max(1, shape[0] if rows is None else rows), max(1, shape[1] if columns is None else columns)


def _blocks(how: Quantization, shape: tuple[int, int]) -> tuple[int, int]:
    # How many blocks lie along each axis; one along an axis without values that they all share.
    rows, columns = how.block
    return 1 if rows is None else -(-shape[0] // rows), 1 if columns is None else -(-shape[1] // columns)


def _block_max(values: Array, how: Quantization) -> Array:
    # The largest magnitude of each block; NaN if one is in it.
    (r, c), (m, n) = block_extents(how, values.shape), _blocks(how, values.shape)
    padded = np.pad(np.abs(values), ((0, m * r - values.shape[0]), (0, n * c - values.shape[1])))
    return padded.reshape(m, r, n, c).max(axis=(1, 3))


def _spread(blocks: Array, extents: tuple[int, int], shape: tuple[int, int]) -> Array:
    # One value for each element of a matrix, from one for each block.
    if blocks.size == 1:
        return blocks
    return blocks.repeat(extents[0], 0).repeat(extents[1], 1)[: shape[0], : shape[1]]


def _scales(how: Quantization, largest: Array) -> tuple[Array, Array, Array | None]:
    """What values are multiplied by, what their codes are multiplied by, and the factor of all, from block maxima.

    NaN where a block holds an infinity or NaN. The formulas, with their float32 roundings, are those of Transformer
    Engine 2, torchao 0.18 and OCP Microscaling 1.0 (scales rounded up), by the name of the recipe.
    """
    finite = np.isfinite(largest)
    largest = np.where(finite, largest, np.float32(1))
    top = np.float32(LARGEST[how.format])
    if how.scale == "float8_e8m0fnu":
        exponents = _e8m0(largest * (1 / top))
        multiplier = np.ldexp(np.float32(1), 127 - exponents)
        return np.where(finite, multiplier, np.float32(np.nan)), np.where(finite, exponents, 255).astype(np.uint8), None
    if how.scale == "float8_e4m3fn":
        return _two_level_scales(largest, finite, top)
    if how.epsilon:
        largest = np.maximum(largest, np.float32(how.epsilon))
    if how.format == INT8:
        scales = largest / top
        return 1 / scales, np.where(finite, scales, np.float32(np.nan)), None
    with np.errstate(divide="ignore", over="ignore"):
        multiplier = np.minimum(top / largest, np.finfo(np.float32).max)
    if how.scale == "power_of_2":
        multiplier = np.ldexp(np.float32(1), np.frexp(multiplier)[1] - 1)
    multiplier = np.where(largest == 0, np.float32(1), multiplier)
    return multiplier, np.where(finite, 1 / multiplier, np.float32(np.nan)), None


def _e8m0(values: Array) -> Array:
    # The biased exponent of the least power of two that is not below each value: int32, 0 to 254.
    bits = values.view(np.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    up = (mantissa > 0) & (exponent != 254) & ~((exponent == 0) & (mantissa <= 0x400000))
    return exponent + up


def _two_level_scales(largest: Array, finite: Array, top: np.float32) -> tuple[Array, Array, Array]:
    # NVFP4 (arXiv:2509.25149, appendix C): E4M3 scales of blocks below one float32 factor of the matrix.
    limit, one = np.float32(np.finfo(np.float32).max), np.float32(1)
    e4m3 = np.float32(LARGEST[E4M3])
    with np.errstate(divide="ignore", over="ignore"):
        encode = np.minimum(e4m3 * top / np.pad(largest, ((0, 1), (0, 1))).max(keepdims=True), limit)
        encode = np.where(encode == 0, one, encode)
        decoding = one / encode
        codes = _encode(
            np.where(finite, np.minimum(largest * (encode * (one / top)), e4m3), np.float32(np.nan)), E4M3, None
        )
        multiplier = np.minimum(one / (_decode(codes, E4M3) * decoding), limit)
    return multiplier, codes, decoding


def hadamard(values: Array) -> Array:
    """Each 16 neighbours of a row, padded with zeros, times the orthogonal Hadamard matrix, its rows with signs.

    Four stages of sums and differences, in a fixed order.
    """
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % HADAMARD)))
    return _butterflies(padded.reshape(-1, HADAMARD) * _signs(values)).reshape(padded.shape)


def undo_hadamard(values: Array) -> Array:
    """What `hadamard` made `values` of, [R, C], C a multiple of 16."""
    return (_butterflies(values.reshape(-1, HADAMARD)) * _signs(values)).reshape(values.shape)


def _signs(values: Array) -> Array:
    return backends.backend_of(values).asarray(np.asarray(_SIGNS, np.float32))


def _butterflies(found: Array) -> Array:
    for distance in (1, 2, 4, 8):
        pairs = found.reshape(-1, HADAMARD // distance // 2, 2, distance)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        found = np.stack([first + second, first - second], 2).reshape(-1, HADAMARD)
    return found * np.float32(0.25)


# codes


def _encode(values: Array, format: str, draw: Draw | None) -> Array:
    # float32 values as codes of a floating-point format, to nearest even or stochastically. Finite ones saturate.
    # Infinities and NaN become NaN without a sign, since that of a NaN depends on the CPU; in a format without NaN 0.
    dtype, words = DTYPES[format], None
    if draw is not None:  # up where the fraction is above 16 random bits over 65536
        bits = backends.backend_of(values).asarray(random.random_bits(*draw, values.size).reshape(values.shape))
        words = ~np.left_shift(bits.astype(np.uint32), 16)
    if format == E2M1:
        values, words = _in_pairs(values), None if words is None else _in_pairs(words)
    finite = np.isfinite(values)
    codes = encode_reference(np.where(finite, values, np.float32(0)), dtype, True, words)
    return codes if format == E2M1 else np.where(finite, codes, np.uint8(FORMATS[dtype].nan))


def _in_pairs(array: Array) -> Array:
    # With an even number of columns, a last one of zeros where there is need.
    return np.pad(array, ((0, 0), (0, array.shape[1] % 2)))


def _decode(codes: Array, format: str) -> Array:
    # The float32 values of codes, of a packed format two for each.
    if format == INT8:
        return codes.astype(np.float32)
    return decode_reference(codes, DTYPES[format], backends.backend_of(codes).asarray(values_of(DTYPES[format])))


def unpacked(quantized: Quantized) -> Array:
    """The codes of a quantized matrix, one for each of its values: [R, C]."""
    if quantized.how.format != E2M1:
        return quantized.codes
    pairs = np.stack([quantized.codes & 15, quantized.codes >> 4], 2)
    return pairs.reshape(len(quantized.codes), 2 * quantized.codes.shape[1])[:, : quantized.shape[1]]


# back to values, and products


def block_scales(quantized: Quantized) -> Array:
    """The float32 factors of the blocks, without the factor of all."""
    format = quantized.how.scale
    return quantized.scales if format in ("float32", "power_of_2") else _decode(quantized.scales, format)


def largest_values(quantized: Quantized) -> Array:
    """The largest magnitude that the format holds by each value's scale: float32, [R, C] or [1, 1]."""
    scales = _spread(block_scales(quantized), block_extents(quantized.how, quantized.shape), quantized.shape)
    largest = scales * np.float32(LARGEST[quantized.how.format])
    return largest if quantized.factor is None else largest * quantized.factor


def dequantize_reference(codes: Array, quantized: Quantized) -> Array:
    extents = block_extents(quantized.how, quantized.shape)
    values = _decode(codes, quantized.how.format)[:, : quantized.shape[1]]
    values = values * _spread(block_scales(quantized), extents, quantized.shape)
    return values if quantized.factor is None else values * quantized.factor


dequantize_ = Primitive("dequantize", "linalg.quantization", dequantize_reference)


def scaled_mm_reference(
    codes: Array, a: Quantized, b: Quantized, dtype: DType, bias: Array | None, buffer: Array | None = None
) -> Array:
    if a.how.format == INT8 and a.how.block[1] is b.how.block[1] is None:
        sums = a.codes.astype(np.float64) @ b.codes.astype(np.float64).T  # of integers below 2 ** 53: exact
        out = sums.astype(np.float32) * a.scales * b.scales.T
    elif codes.size:
        out = dequantize_reference(a.codes, a) @ dequantize_reference(b.codes, b).T
    else:  # here the other operand may have no codes
        out = backends.backend_of(codes).zeros((a.shape[0], b.shape[0]), float32)
    return cast(out if bias is None else out + cast(bias, float32), dtype)


scaled_mm_ = Primitive("scaled_mm", "linalg.quantization", scaled_mm_reference)

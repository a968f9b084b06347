"""Codes of formats below 16 bits from NumPy arrays, and back, by kernels/cpu/pointwise/formats.cpp."""

from __future__ import annotations

from ampkit.base.dtypes import NARROW, DType, float64, uint8
from ampkit.base.formats import FORMATS, codes_shape, is_packed, values_shape

from .caching_allocator import address
from .copies import contiguous
from .native.arrays import FLOATS, KINDS, Function, HostArray, aligned, available, empty

MIN_ELEMENTS = 64  # below, a call takes as long as the reference
_encode = Function("encode_format", "ppiiiiiiuu")
_decode = Function("decode_format", "ppiiii")


def encodes(values: HostArray, dtype: DType) -> bool:
    """Whether the kernel takes values of this dtype."""
    return available() and dtype in NARROW and values.dtype in FLOATS | {float64}


def encode(values: HostArray, dtype: DType, saturate: bool, draw: tuple[int, int] | None = None) -> HostArray:
    """The uint8 codes of values; draw: (seed, call) of the random bits, None rounds to nearest."""
    chosen, values = FORMATS[dtype], aligned(contiguous(values))
    out = empty(codes_shape(values.shape, dtype), uint8)
    beyond, kind = chosen.largest if saturate else chosen.overflow, KINDS[values.dtype]
    options = chosen.number, is_packed(dtype), beyond, draw is not None, *(draw or (0, 0))
    _encode(address(values), address(out), kind, values.size, *options)
    return out


def decodes(to: DType) -> bool:
    """Whether the kernel writes values of this dtype."""
    return available() and to in FLOATS | {float64}


def decode(codes: HostArray, dtype: DType, to: DType) -> HostArray:
    """The values of uint8 codes in the dtype `to`."""
    codes = contiguous(codes)
    out = empty(values_shape(codes.shape, dtype), to)
    _decode(address(codes), address(out), KINDS[to], codes.size, FORMATS[dtype].number, is_packed(dtype))
    return out

"""CPU kernels of formats below 16 bits (formats.cpp)."""

from __future__ import annotations

from ampkit.backends.cpu import formats
from ampkit.backends.cpu.native.arrays import HostArray
from ampkit.base.dtypes import DType
from ampkit.ops.pointwise.formats import decode, encode


@encode.on("cpu", when=lambda values, dtype, *more: formats.encodes(values, dtype), min_elements=formats.MIN_ELEMENTS)
def encode_cpu(values: HostArray, dtype: DType, saturate: bool, draw: tuple[int, int] | None) -> HostArray:
    return formats.encode(values, dtype, saturate, draw)


@decode.on("cpu", when=lambda codes, dtype, to: formats.decodes(to), min_elements=formats.MIN_ELEMENTS)
def decode_cpu(codes: HostArray, dtype: DType, to: DType) -> HostArray:
    return formats.decode(codes, dtype, to)

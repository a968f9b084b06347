"""CUDA kernels of formats below 16 bits (formats.cu)."""

from __future__ import annotations

from ampkit.backends.cuda.launch import formats
from ampkit.base.dtypes import Array, DType
from ampkit.ops.pointwise.formats import decode, encode


@encode.on("cuda", when=lambda values, dtype, *more: formats.encodes(values, dtype))
def encode_cuda(values: Array, dtype: DType, saturate: bool, draw: tuple[int, int] | None) -> Array:
    return formats.encode(values, dtype, saturate, draw)


@decode.on("cuda", when=lambda codes, dtype, to: formats.decodes(codes, dtype, to))
def decode_cuda(codes: Array, dtype: DType, to: DType) -> Array:
    return formats.decode(codes, dtype, to)

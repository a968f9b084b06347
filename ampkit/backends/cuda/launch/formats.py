"""Codes of formats below 16 bits from CuPy arrays, and back, by kernels/cuda/pointwise/formats.cu."""

from __future__ import annotations

from math import prod

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import (
    Array,
    DType,
    float4_e2m1fn_x2,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    uint8,
)
from ampkit.base.formats import FORMATS, codes_shape, is_packed, values_shape

from ..array_layout import contiguous
from ..nvrtc import C_NAMES, MAX_ELEMENTS, STORED, blocks_for, drawn, launch

THREADS, EACH = 256, 8  # EACH: values of a thread, as in formats.cu
STRUCTS = {  # those of formats.h that have entries
    float8_e4m3fn: "Float8E4M3FN",
    float8_e5m2: "Float8E5M2",
    float8_e8m0fnu: "Float8E8M0FNU",
    float4_e2m1fn_x2: "Float4E2M1FN",
}


def encodes(values: Array, dtype: DType) -> bool:
    """Whether the kernel has this format, and takes values of their dtype and so many of them."""
    return dtype in STRUCTS and values.dtype in STORED and 0 < values.size <= MAX_ELEMENTS


def encode(values: Array, dtype: DType, saturate: bool, draw: tuple[int, int] | None = None) -> Array:
    """The uint8 codes of values; draw: (seed, call) of the random bits, None rounds to nearest."""
    backend, chosen, values = backends.backend_of(values), FORMATS[dtype], contiguous(values)
    out = backend.empty(codes_shape(values.shape, dtype), uint8)
    beyond = np.uint32(chosen.largest if saturate else chosen.overflow)
    seeds = drawn(backend, *(draw or (0, 0)))
    options = np.int64(values.size), beyond, np.bool_(draw is not None), *seeds, _all_aligned(values, out)
    _launch("encode_format", dtype, values.dtype, values.size, values, out, *options)
    return out


def decodes(codes: Array, dtype: DType, to: DType) -> bool:
    """Whether the kernel has this format, and writes values of the dtype `to` and so many of them."""
    return dtype in STRUCTS and to in STORED and 0 < codes.size <= MAX_ELEMENTS // 2


def decode(codes: Array, dtype: DType, to: DType) -> Array:
    """The values of uint8 codes in the dtype `to`."""
    codes = contiguous(codes)
    out = backends.backend_of(codes).empty(values_shape(codes.shape, dtype), to)
    options = np.int64(codes.size), _all_aligned(codes, out)
    _launch("decode_format", dtype, to, prod(out.shape), codes, out, *options)
    return out


def _launch(entry: str, dtype: DType, of: DType, count: int, *args: Array) -> None:
    name = f"{entry}<{STRUCTS[dtype]}, {C_NAMES[of]}, {str(is_packed(dtype)).lower()}>"
    launch("pointwise/formats", name, blocks_for(count, THREADS * EACH), THREADS, *args)


def _all_aligned(*arrays: Array) -> np.bool_:
    return np.bool_(not any(a.data.ptr % 16 for a in arrays))

"""CPU kernels of codes and the numbers they stand for (codes.cpp)."""

from __future__ import annotations

import ctypes
from typing import Any

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.native.arrays import KINDS, Function, HostArray, available, empty_like, supported
from ampkit.base.dtypes import DType, float32, int8
from ampkit.ops.quantized.codes import QParams, dequantize_per_tensor, not_a_number, quantize_per_tensor

_MIN_ELEMENTS = 1 << 10
_quantize = Function("quantize_codes", "pipiffi", ctypes.c_int64)
_dequantize = Function("dequantize_codes", "ppiffi")


def _is_dense(array: HostArray) -> bool:
    # Whether its elements follow each other in memory, in whatever order of axes.
    flags, axes = array.flags, array.ndim
    return flags.c_contiguous or flags.f_contiguous or (axes == 4 and array.transpose(0, 2, 3, 1).flags.c_contiguous)


@quantize_per_tensor.on("cpu", when=lambda x, qparams: supported(x) and _is_dense(x), min_elements=_MIN_ELEMENTS)
def quantize_cpu(input: HostArray, qparams: QParams, *, dtype: DType) -> HostArray:
    codes = empty_like(input, qparams.dtype)
    where = address(input), KINDS[input.dtype], address(codes), input.size
    if _quantize(*where, 1 / qparams.scale, qparams.zero_point, qparams.signed):
        raise not_a_number()
    return codes


def _are_codes(codes: HostArray, qparams: QParams) -> bool:
    return available() and codes.itemsize == 1 and _is_dense(codes)


@dequantize_per_tensor.on("cpu", when=_are_codes, min_elements=_MIN_ELEMENTS)
def dequantize_cpu(codes: HostArray, qparams: QParams) -> Any:
    values = empty_like(codes, float32)
    scaled = qparams.scale, qparams.zero_point, codes.dtype == int8
    _dequantize(address(values), address(codes), codes.size, *scaled)
    return values

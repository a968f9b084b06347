"""CPU kernels of codes and the numbers they stand for (codes.cpp)."""

from __future__ import annotations

import ctypes
from typing import Any

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.channels_last import empty_channels_last
from ampkit.backends.cpu.native.arrays import KINDS, Function, HostArray, available, empty_like, supported
from ampkit.base.dtypes import DType, float32, int8
from ampkit.ops.quantized.codes import QParams, dequantize_per_tensor, not_a_number, quantize_per_tensor

_MIN_ELEMENTS = 1 << 10
_FEW_CHANNELS = 16  # of images that are stored channel by channel
_quantize = Function("quantize_codes", "pipiffi", ctypes.c_int64)
_quantize_images = Function("quantize_images", "pipiiiffi", ctypes.c_int64)
_dequantize = Function("dequantize_codes", "ppiffi")


def _is_dense(array: HostArray) -> bool:
    # Whether its elements follow each other in memory, in whatever order of axes.
    flags, axes = array.flags, array.ndim
    return flags.c_contiguous or flags.f_contiguous or (axes == 4 and array.transpose(0, 2, 3, 1).flags.c_contiguous)


@quantize_per_tensor.on("cpu", when=lambda x, qparams: supported(x) and _is_dense(x), min_elements=_MIN_ELEMENTS)
def quantize_cpu(input: HostArray, qparams: QParams, *, dtype: DType) -> HostArray:
    grid = 1 / qparams.scale, qparams.zero_point, qparams.signed
    if input.ndim == 4 and 1 < input.shape[1] <= _FEW_CHANNELS and input.flags.c_contiguous:
        codes = empty_channels_last(input.shape, qparams.dtype)  # as convolutions read them
        size = len(input), input.shape[1], input.shape[2] * input.shape[3]
        invalid = _quantize_images(address(input), KINDS[input.dtype], address(codes), *size, *grid)
    else:
        codes = empty_like(input, qparams.dtype)
        invalid = _quantize(address(input), KINDS[input.dtype], address(codes), input.size, *grid)
    if invalid:
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

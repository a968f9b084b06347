"""CPU kernels of pooling: maxima by pool.cpp, means as separable linear maps."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.native.arrays import MIN_FUSED, Function, HostArray, need_view, supported
from ampkit.backends.cpu.onednn.library import library
from ampkit.backends.cpu.onednn.pooling import max_pool
from ampkit.backends.cpu.resample import (
    AxisTaps,
    ImageMap,
    empty_images,
    image_map,
    planes,
    planes_to_write,
    resample,
)
from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import DType, int8, uint8
from ampkit.base.errors import UnsupportedError
from ampkit.base.memory_format import channels_are_last
from ampkit.kernels.shared.pool import Pooling, register_pools
from ampkit.ops.nn import pool

from ..pointwise import LAUNCHER

_forward, _backward = Function("max_pool_forward", "aaaip"), Function("max_pool_backward", "aaaip")


def _is_large(array: HostArray, size: tuple[int, ...], needs: Any) -> bool:
    """Whether kernels take the array, and it or as many images of `size` as there are in it are worth a call."""
    old, new = prod(array.shape[-len(size) :]), prod(size)
    return bool(old and new) and array.size // old * max(old, new) >= MIN_FUSED and supported(array)


# maxima


@lru_cache(1024)
def _table(w: ConvGeometry) -> HostArray:
    """The geometry as the kernel reads it: six numbers for each of depth, height and width.

    Held while a kernel reads it: another thread may crowd it out of the cache.
    """
    before = [before for before, _ in w.padding]
    axes = [*zip(w.input_size, w.output_size, w.kernel, w.stride, w.dilation, before, strict=True)]
    return np.array([*[(1, 1, 1, 1, 1, 0)] * (3 - len(axes)), *axes], np.int64)


def maxima(images: HostArray, w: ConvGeometry, dtype: DType, last: bool) -> tuple[HostArray, HostArray]:
    """The maximum of each window of `images` [N, C, *size], and its position in the window: uint8."""
    best, taps = (empty_images((*images.shape[:2], *w.output_size), kind, last) for kind in (dtype, uint8))
    written, table = [planes_to_write(array, last) for array in (best, taps)], _table(w)
    _forward(*written, planes(images, last), images.shape[1] if last else 1, address(table))
    return best, taps


def _maxima_gradient(grad: HostArray, taps: HostArray, w: ConvGeometry, dtype: DType, last: bool | None) -> HostArray:
    # As dy is stored, where both orders are one for the positions: a maximum of all pixels, or a single channel.
    last = channels_are_last(taps) or (channels_are_last(grad) and not taps.flags.c_contiguous)
    out = empty_images((*grad.shape[:2], *w.input_size), dtype, last)
    flat, table = [planes(array, last) for array in (grad, taps)], _table(w)
    _backward(planes_to_write(out, last), *flat, grad.shape[1] if last else 1, address(table))
    return out


def _are_codes(input: HostArray, *options: Any) -> bool:
    # return_indices, the last option, asks for positions too.
    return input.dtype in (uint8, int8) and input.ndim == 4 and not options[-1] and library() is not None


@pool.max_pool2d.on("cpu", when=_are_codes)
def max_pool2d_codes(
    input: HostArray, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, return_indices: bool,
    *, dtype: DType,
) -> HostArray:  # fmt: skip
    w = pool.pool_geometry("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode, 2)
    return need_view(max_pool(input, w))


# means


@lru_cache(1024)
def _windows(w: ConvGeometry, count_include_pad: bool, divisor_override: Any) -> tuple[ImageMap, ImageMap]:
    """The means of these windows as a map, and its transpose."""
    same = all(before == after for before, after in w.padding)
    padded = any(before for before, _ in w.padding)
    uniform = divisor_override is not None or (same and (count_include_pad or not padded))
    axes = []
    for n, m, k, s, (before, _) in zip(w.input_size, w.output_size, w.kernel, w.stride, w.padding, strict=True):
        position = np.arange(m) * s - before + np.arange(k)[:, None]
        margin = before if count_include_pad else 0
        count = ((position >= -margin) & (position < n + margin)).sum(0)
        weight = np.broadcast_to(1.0 if uniform else 1 / np.maximum(count, 1), position.shape)
        axes.append(AxisTaps(np.where((position >= 0) & (position < n), position, n), weight, n))
    divisor = 1.0 if not uniform else prod(w.kernel) if divisor_override is None else divisor_override
    return both_ways(axes, divisor)


def both_ways(axes: list[AxisTaps], divisor: float) -> tuple[ImageMap, ImageMap]:
    """The map by these taps, and its transpose."""
    return image_map(axes, divisor), image_map([taps.transposed() for taps in axes], divisor)


def _mapped(images: HostArray, by: ImageMap, dtype: DType, last: bool | None = None) -> HostArray:
    # Declines where too many numbers would be added in sequence.
    if not by.few_taps and (by.of_planes is None or not images.flags.c_contiguous):
        raise UnsupportedError
    return resample(images, by, dtype, last)


POOLING = Pooling(
    lambda input, *more: supported(input), _is_large, channels_are_last, maxima, _maxima_gradient,
    lambda images, maps, dtype: _mapped(images, maps[0], dtype),
    lambda dy, maps, dtype, last: _mapped(dy, maps[1], dtype, last),
)  # fmt: skip
register_pools(LAUNCHER, POOLING, _windows)

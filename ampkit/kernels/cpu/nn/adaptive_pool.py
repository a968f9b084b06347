"""CPU kernels of adaptive pooling: means as a separable linear map, maxima of large windows in two steps."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.native.arrays import HostArray, supported
from ampkit.backends.cpu.resample import AxisTaps, ImageMap
from ampkit.base.errors import UnsupportedError
from ampkit.base.memory_format import channels_are_last
from ampkit.kernels.shared.pool import MOST_PIXELS, register_adaptive_mean, register_adaptive_places
from ampkit.ops.nn import adaptive_pool
from ampkit.ops.nn.conv_geometry import conv_geometry
from ampkit.ops.nn.pool import flat_indices

from ..pointwise import LAUNCHER
from .pool import POOLING, both_ways, maxima


@lru_cache(1024)
def _means(size: tuple[int, ...], out: tuple[int, ...]) -> tuple[ImageMap, ImageMap]:
    """The means of these windows as a map, and its transpose."""
    even, axes = not any(n % m for n, m in zip(size, out, strict=True)), []
    for n, m in zip(size, out, strict=True):
        first, end = adaptive_pool.adaptive_windows(n, m)
        position = first + np.arange((end - first).max())[:, None]
        weight = np.broadcast_to(1.0 if even else 1 / (end - first), position.shape)
        axes.append(AxisTaps(np.where(position < end, position, n), weight, n))
    return both_ways(axes, prod(size) / prod(out) if even else 1.0)


register_adaptive_mean(LAUNCHER, POOLING, _means, adaptive_pool.adaptive_avg_pool2d, 2)
register_adaptive_mean(LAUNCHER, POOLING, _means, adaptive_pool.adaptive_avg_pool3d, 3)


def _windows_are_equal(input: HostArray, output_size: Any) -> bool:
    sizes = zip(input.shape[-len(output_size) :], output_size, strict=True)
    return supported(input) and not any(n % m for n, m in sizes)


def _places(images: HostArray, output_size: Any) -> Any:
    """Of large windows that do not overlap: the maxima along the last axis, then those of these.

    Of equal ones that is still the first, of NaNs the last.
    """
    kernel = tuple([n // m for n, m in zip(images.shape[2:], output_size, strict=True)])
    rows, in_rows = _maxima_and_places(images, (*[1] * (len(kernel) - 1), kernel[-1]))
    _, of_row = _maxima_and_places(rows, (*kernel[:-1], 1))
    flat = (*images.shape[:2], -1)
    place = np.take_along_axis(in_rows.reshape(flat), of_row.reshape(flat), -1).reshape(of_row.shape)
    return np.ascontiguousarray(place)


def _maxima_and_places(images: HostArray, kernel: tuple[int, ...]) -> tuple[HostArray, HostArray]:
    """The maximum of each window of images [N, C, *size], and its flat index in `size`."""
    w = conv_geometry("adaptive_max_pool", kernel, kernel, 0, 1, images.shape[2:])
    if prod(kernel) > MOST_PIXELS:
        raise UnsupportedError
    best, taps = maxima(images, w, images.dtype, channels_are_last(images))
    return best, flat_indices(taps, w)


register_adaptive_places(LAUNCHER, _places, _windows_are_equal)

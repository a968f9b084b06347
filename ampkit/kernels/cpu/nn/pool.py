"""CPU kernels of pooling: maxima by pool.cpp, means as separable linear maps."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.native.arrays import MIN_FUSED, Function, HostArray, supported
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
from ampkit.base.dtypes import DType, uint8
from ampkit.base.errors import UnsupportedError
from ampkit.base.memory_format import channels_are_last
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn import pool
from ampkit.ops.nn.conv_geometry import batched, unbatched

MOST_PIXELS = 255  # of a window of which a byte tells the position of the maximum

_forward, _backward = Function("max_pool_forward", "aaaip"), Function("max_pool_backward", "aaaip")


def is_large(array: HostArray, size: tuple[int, ...]) -> bool:
    """Whether kernels take the array, and it or as many images of `size` as there are in it are worth a call."""
    old, new = prod(array.shape[-len(size) :]), prod(size)
    return bool(old and new) and array.size // old * max(old, new) >= MIN_FUSED and supported(array)


# maxima


@lru_cache(1024)
def _table(w: ConvGeometry) -> HostArray:
    """The geometry as the kernel reads it: six numbers for each of depth, height and width."""
    before = [before for before, _ in w.padding]
    axes = [*zip(w.input_size, w.output_size, w.kernel, w.stride, w.dilation, before, strict=True)]
    return np.array([*[(1, 1, 1, 1, 1, 0)] * (3 - len(axes)), *axes], np.int64)


def maxima(images: HostArray, w: ConvGeometry, dtype: DType) -> tuple[HostArray, HostArray]:
    """The maximum of each window of `images` [N, C, *size], and its position in the window: uint8.

    Raises UnsupportedError for windows of more than MOST_PIXELS.
    """
    if prod(w.kernel) > MOST_PIXELS:
        raise UnsupportedError
    last = channels_are_last(images)
    best, taps = (empty_images((*images.shape[:2], *w.output_size), kind, last) for kind in (dtype, uint8))
    written = [planes_to_write(array, last) for array in (best, taps)]
    _forward(*written, planes(images, last), images.shape[1] if last else 1, address(_table(w)))
    return best, taps


def _maximum(op: Any, axes: int) -> None:
    def forward(
        input: HostArray, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
        return_indices: bool, *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_geometry(op.name, input, kernel_size, stride, padding, dilation, ceil_mode, axes)
        best, taps = maxima(batched(input, axes), w, dtype)
        best, place = unbatched(best, input.ndim), unbatched(taps, input.ndim)
        saved = Saved(argmax=place, geometry=w)
        return ((best, pool.flat_indices(place, w)), saved) if return_indices else (best, saved)

    def back_fits(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
        grad = dy[0] if type(dy) is tuple else dy
        return is_large(grad, saved.geometry.input_size) and saved.argmax.dtype == uint8

    def backward(dy: Any, saved: Saved, needs: Any, **params: Any) -> Any:
        grad, taps = (batched(array, axes) for array in (dy[0] if type(dy) is tuple else dy, saved.argmax))
        last = channels_are_last(taps) or (channels_are_last(grad) and not taps.flags.c_contiguous)
        out = empty_images((*grad.shape[:2], *saved.geometry.input_size), needs[0], last)
        flat = [planes(array, last) for array in (grad, taps)]
        _backward(planes_to_write(out, last), *flat, grad.shape[1] if last else 1, address(_table(saved.geometry)))
        return unbatched(out, saved.argmax.ndim)

    register(op, forward, back_fits, backward)


# means


@lru_cache(1024)
def _mean(w: ConvGeometry, count_include_pad: bool, divisor_override: Any) -> tuple[ImageMap, ImageMap]:
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


def mapped(input: HostArray, by: ImageMap, dtype: DType, axes: int, last: bool | None = None) -> Any:
    """`input` [N, C, *size] or [C, *size], mapped.

    last: whether the result is channels-last; None for the layout of the input.
    Raises UnsupportedError where too many numbers would be added in sequence.
    """
    if not by.few_taps and (by.of_planes is None or not input.flags.c_contiguous):
        raise UnsupportedError
    return unbatched(resample(batched(input, axes), by, dtype, last), input.ndim)


def _averages(op: Any, axes: int) -> None:
    def forward(
        input: HostArray, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
        divisor_override: Any, *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = pool.pool_geometry(op.name, input, kernel_size, stride, padding, 1, ceil_mode, axes)
        out = mapped(input, _mean(w, bool(count_include_pad), divisor_override)[0], dtype, axes)
        return out, Saved(geometry=w, last=channels_are_last(batched(input, axes)))

    def back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
        return is_large(dy, saved.geometry.input_size)

    def backward(
        dy: HostArray, saved: Saved, needs: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: Any,
    ) -> Any:  # fmt: skip
        by = _mean(saved.geometry, bool(count_include_pad), divisor_override)[1]
        return mapped(dy, by, needs[0], axes, getattr(saved, "last", None))

    register(op, forward, back_fits, backward)


def register(op: Any, forward: Any, back_fits: Any, backward: Any) -> None:
    """Register the kernels of a pool, under names that profiles show."""
    forward.__name__, backward.__name__ = f"{op.name}_cpu", f"{op.name}_backward_cpu"
    op.on("cpu", when=lambda input, *more: supported(input), min_elements=MIN_FUSED)(forward)
    op.on_backward("cpu", when=back_fits)(backward)


for _axes in (2, 3):
    _maximum(getattr(pool, f"max_pool{_axes}d"), _axes)
    _averages(getattr(pool, f"avg_pool{_axes}d"), _axes)

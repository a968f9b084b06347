"""Max and average pooling of sequences, images and volumes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import FLOATS
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import TracedArray, apply, plain
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import int_tuple
from ..named import named
from ..pointwise.conversion import stored_like
from ..shape.view import squeeze, unsqueeze
from .conv_geometry import batch_first, batch_last, batched, conv_geometry, fold_, padded, unbatched

__all__ = ["avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d"]


def _max_pool(axes: int, doc: str) -> Op:
    name = f"max_pool{axes}d"

    @op(cast=Cast.KEEP)
    @named(name, doc)
    def pool(input: Array, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        geometry = pool_geometry(name, input, kernel_size, stride, padding, dilation, ceil_mode, axes)
        return max_pool_forward(input, geometry, return_indices)

    @pool.check
    def check(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices):
        _check(name, axes, input, kernel_size, padding)

    pool.backward(max_pool_backward)
    return pool


def max_pool_forward(input: Array, geometry: ConvGeometry, return_indices: bool) -> Any:
    """The reference of max pooling: (output or (output, indices), Saved).

    argmax [N, C, H', W']: per window, the position in the kernel of its maximum, in the smallest unsigned dtype.
    """
    lowest = -np.inf if input.dtype in FLOATS else np.iinfo(input.dtype).min
    source = padded(batched(input, len(geometry.input_size)), geometry, lowest)
    best: Any = None
    for k, (_, pixels) in enumerate(geometry.taps()):
        values = source[pixels]
        if best is None:
            best = values.copy()
            argmax = np.zeros_like(values, dtype=np.min_scalar_type(prod(geometry.kernel)), order="C")
            continue
        better = values > best
        better |= values != values
        np.maximum(best, values, out=best)
        np.maximum(argmax, better * argmax.dtype.type(k), out=argmax)
    images = batched(plain(input), len(geometry.input_size))
    best, argmax = (unbatched(stored_like(images, batch_first(array)), input.ndim) for array in (best, argmax))
    saved = Saved(argmax=argmax, geometry=geometry)
    return ((best, flat_indices(argmax, geometry)), saved) if return_indices else (best, saved)


def max_pool_backward(dy, saved, needs, kernel_size, stride, padding, dilation, ceil_mode, return_indices):
    dy, geometry, argmax = dy[0] if return_indices else dy, saved.geometry, saved.argmax
    axes = len(geometry.input_size)
    if isinstance(dy, TracedArray):
        taps = np.arange(prod(geometry.kernel), like=argmax).reshape(-1, *(1,) * axes)
        hits = argmax.reshape(*argmax.shape[:-axes], 1, *geometry.output_size) == taps
        return _scatter_traced(dy, hits, geometry)
    moved, argmax = batch_last(batched(dy, axes)), batch_last(batched(argmax, axes))
    return _scatter(moved, lambda k: np.where(argmax == k, moved, 0), geometry, dy.ndim)


def flat_indices(argmax: Array, geometry: ConvGeometry) -> Array:
    """The flat index in the input of each window's maximum: int64, of the shape of `argmax`."""
    tap, flat, step = argmax.astype(np.int64), 0, 1
    axes = list(zip(*geometry, geometry.output_size, strict=True))
    for i, (kernel, stride, dilation, (before, _), size, count) in reversed(list(enumerate(axes))):
        first = np.arange(count, like=argmax).astype(np.int64) * stride - before
        index = first.reshape(-1, *(1,) * (len(axes) - 1 - i)) + tap % kernel * dilation
        flat, step, tap = flat + index * step, step * size, tap // kernel
    return flat


def _average_pool(axes: int, doc: str) -> Op:
    name = f"avg_pool{axes}d"

    @op(cast=Cast.KEEP, integers="refuse")
    @named(name, doc)
    def pool(
        input: Array, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
        divisor_override: int | None = None,
    ):  # fmt: skip
        geometry = pool_geometry(name, input, kernel_size, stride, padding, 1, ceil_mode, axes)
        source, total = padded(batched(input, axes), geometry), 0
        for _, pixels in geometry.taps():
            total = source[pixels] + total
        out = batch_first(total) / _divisor(source, geometry, padding, count_include_pad, divisor_override)
        return unbatched(stored_like(batched(plain(input), axes), out), input.ndim), Saved(geometry=geometry)

    @pool.check
    def check(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
        _check(name, axes, input, kernel_size, padding)
        if divisor_override is not None and divisor_override == 0:
            raise ArgumentError(name, "a divisor_override other than 0", "0")

    pool.backward(avg_pool_backward)
    return pool


def avg_pool_backward(dy, saved, needs, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    geometry = saved.geometry
    axes = len(geometry.input_size)
    dy = dy / _divisor(plain(dy), geometry, padding, count_include_pad, divisor_override)
    if isinstance(dy, TracedArray):
        return _scatter_traced(dy, np.ones_like(plain(dy), shape=(prod(geometry.kernel), *(1,) * axes)), geometry)
    moved = batch_last(batched(dy, axes))
    return _scatter(moved, lambda k: moved, geometry, dy.ndim)


def _divisor(like: Array, geometry: ConvGeometry, padding: Any, count_include_pad: bool, override: Any) -> Any:
    # A number where all windows count equally many pixels, else an array [H', W'] of the dtype of `like`.
    pads = int_tuple("avg_pool", "padding", padding, 0, len(geometry.input_size))
    beyond = any(after != p for (_, after), p in zip(geometry.padding, pads, strict=True))
    # ceil_mode's last windows reach beyond the padding, and what is there never counts
    if override is not None or (not beyond and (count_include_pad or not any(pads))):
        return prod(geometry.kernel) if override is None else override
    counts: Any = np.zeros_like(like, shape=(1, *geometry.padded_size))
    total: Any = 0
    margins = pads if count_include_pad else (0,) * len(pads)
    axes = zip(geometry.padding, geometry.input_size, margins, strict=True)
    counts[(0, *(slice(before - m, before + n + m) for (before, _), n, m in axes))] = 1
    for _, pixels in geometry.taps():
        total = counts[pixels] + total
    return total[0]


def _scatter(like: Array, share: Callable[[int], Array], geometry: ConvGeometry, ndim: int) -> Array:
    # Add share(k) [C, H', W', N] to the pixels that position k of the kernel reads; return [N, C, H, W].
    out = np.zeros_like(like, shape=(len(like), *geometry.padded_size, like.shape[-1]), order="C")
    for k, (_, pixels) in enumerate(geometry.taps()):
        out[pixels] += share(k)
    return unbatched(batch_first(geometry.crop(out)), ndim)


def _scatter_traced(dy: Any, weights: Array, geometry: ConvGeometry) -> Any:
    # The same for traced dy [N, C, H', W'], times weights [..., kernel, H', W'].
    *lead, channels = dy.shape[: -len(geometry.input_size)]
    columns = dy.reshape(*lead, channels, 1, *geometry.output_size) * weights
    columns = columns.reshape(*lead, channels * prod(geometry.kernel), prod(geometry.output_size))
    return apply(fold_, columns, geometry)


def pool_geometry(
    where: str, input: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, axes: int = 2
) -> ConvGeometry:
    """The geometry of a pool's arguments. Raises as `conv_geometry`."""
    step = kernel if stride is None or (isinstance(stride, (list, tuple)) and not stride) else stride
    return conv_geometry(
        where, kernel, step, int_tuple(where, "padding", padding, 0, axes), dilation, input.shape[-axes:], ceil
    )


def _check(where: str, axes: int, input: Any, kernel_size: Any, padding: Any) -> None:
    check_images(where, input, axes)
    if input.dtype == np.bool_:
        raise DTypeError(where, "numbers", "bool", "cast it: x.float()")
    kernel, pads = int_tuple(where, "kernel_size", kernel_size, 1, axes), int_tuple(where, "padding", padding, 0, axes)
    if any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
        raise ArgumentError(where, f"padding of at most half the kernel {kernel}", f"{pads}")


def check_images(where: str, input: Any, axes: int) -> None:
    """Raise ShapeError unless input is [N, C, *size] or [C, *size] with that many spatial axes."""
    shape, names = tuple(getattr(input, "shape", ())), ("L", "H, W", "D, H, W")[axes - 1]
    if len(shape) not in (axes + 1, axes + 2):
        raise ShapeError(where, f"input [N, C, {names}] or [C, {names}]", f"input {list(shape)}")


max_pool2d = _max_pool(
    2,
    """The maximum of each window; NaN if it contains one.

    input [N, C, H, W] or [C, H, W] -> [N, C, H', W'] in the input's dtype, exact; with return_indices also the flat
    indices of these values in H * W, int64. stride: by default the kernel. Of equal values the first gets the gradient.
    Raises ShapeError if no window fits, ArgumentError for padding beyond half the kernel.
    """,
)
max_pool3d = _max_pool(
    3, "The maximum of each window of volumes: input [N, C, D, H, W] or [C, D, H, W]; see `max_pool2d`."
)
avg_pool2d = _average_pool(
    2,
    """The mean of each window, or its sum over divisor_override.

    input [N, C, H, W] or [C, H, W] -> [N, C, H', W'] in the input's dtype, summed in float32 and rounded once.
    stride: by default the kernel. The padding counts as zeros unless count_include_pad is False.
    Raises ShapeError if no window fits, ArgumentError for padding beyond half the kernel.
    """,
)
avg_pool3d = _average_pool(
    3, "The mean of each window of volumes: input [N, C, D, H, W] or [C, D, H, W]; see `avg_pool2d`."
)


def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window: input [N, C, L] or [C, L] -> [N, C, L']; see `max_pool2d`."""
    sizes = (of_row(1, kernel_size), of_row(1, kernel_size if stride is None else stride), of_row(0, padding))
    found = max_pool2d(unsqueeze(input, -2), *sizes, of_row(1, dilation), ceil_mode, return_indices)
    return tuple(squeeze(f, -2) for f in found) if return_indices else squeeze(found, -2)


def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window: input [N, C, L] or [C, L] -> [N, C, L']; see `avg_pool2d`."""
    sizes = (of_row(1, kernel_size), of_row(1, kernel_size if stride is None else stride), of_row(0, padding))
    return squeeze(avg_pool2d(unsqueeze(input, -2), *sizes, ceil_mode, count_include_pad), -2)


def of_row(rows: int, value: Any) -> tuple[int, Any]:
    """A 1-D argument as that of images of one row: (rows, value)."""
    return rows, value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value

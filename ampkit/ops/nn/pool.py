"""Pooling: one number per window of an image, its largest or its mean."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.base.dtypes import FLOATS
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import TracedArray, apply, plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast

from ..reduction.dot_products import times
from ..shape.axes import addressable
from .conv_geometry import ConvGeometry, batch_first, batch_last, batched, conv_geometry, fold_, padded, pair, unbatched

__all__ = ["adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool2d", "avg_pool3d", "max_pool2d", "max_pool3d"]


@op(cast=Cast.KEEP)
def max_pool2d(input: Array, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest value of each window; NaN if there is one.

    input [N, C, H, W] or [C, H, W] -> [N, C, rows, columns] in the input's dtype, exact; with return_indices also the
    places of these values in H * W, int64. stride: by default the kernel. The gradient goes to the first of equals.
    Raises ShapeError if no window fits, ArgumentError for padding beyond half the kernel.
    """
    w = pool_windows("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode)
    return largest(input, w, return_indices)


@op(cast=Cast.KEEP)
def max_pool3d(input: Array, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest value of each window of volumes: input [N, C, D, H, W] or [C, D, H, W]; see `max_pool2d`."""
    w = pool_windows("max_pool3d", input, kernel_size, stride, padding, dilation, ceil_mode, 3)
    return largest(input, w, return_indices)


def max_pool_backward(dy, saved, needs, kernel_size, stride, padding, dilation, ceil_mode, return_indices):
    dy, w, place = dy[0] if return_indices else dy, saved.geometry, saved.argmax
    axes = len(w.input_size)
    if isinstance(dy, TracedArray):
        taps = np.arange(prod(w.kernel), like=place).reshape(-1, *(1,) * axes)
        return _spread_taped(dy, place.reshape(*place.shape[:-axes], 1, *w.output_size) == taps, w)
    moved, place = batch_last(batched(dy, axes)), batch_last(batched(place, axes))
    home = np.zeros_like(moved, shape=(len(moved), *w.padded_size, moved.shape[-1]), order="C")
    for k, (_, there) in enumerate(w.taps()):
        home[there] += np.where(place == k, moved, 0)
    return unbatched(batch_first(w.crop(home)), dy.ndim)


def largest(input: Array, w: ConvGeometry, return_indices: bool) -> Any:
    """What a maximum's reference returns: the largest values of the windows, and what backward needs."""
    lowest = -np.inf if input.dtype in FLOATS else np.iinfo(input.dtype).min
    source, best, place = padded(batched(input, len(w.input_size)), w, lowest), None, None
    small = np.min_scalar_type(prod(w.kernel))
    for k, (_, there) in enumerate(w.taps()):
        values = source[there]
        if best is None:
            best, place = values.copy(), np.zeros_like(values, dtype=small, order="C")
            continue
        better = values > best
        better |= values != values
        np.maximum(best, values, out=best)
        np.maximum(place, better * place.dtype.type(k), out=place)
    best, place = (unbatched(batch_first(found), input.ndim) for found in (best, place))
    saved = Saved(argmax=place, geometry=w)
    return ((best, flat_indices(place, w)), saved) if return_indices else (best, saved)


def flat_indices(place: Array, w: ConvGeometry) -> Array:
    """Within its image, the flat position of the tap that each window chose: int64, of the shape of `place`."""
    tap, flat, step = place.astype(np.int64), 0, 1
    for i in range(len(w.input_size) - 1, -1, -1):
        first = np.arange(w.output_size[i], like=place).astype(np.int64) * w.stride[i] - w.padding[i][0]
        at = first.reshape(-1, *(1,) * (len(w.input_size) - 1 - i)) + tap % w.kernel[i] * w.dilation[i]
        flat, step, tap = flat + at * step, step * w.input_size[i], tap // w.kernel[i]
    return flat


@op(cast=Cast.KEEP, integers="refuse")
def avg_pool2d(
    input: Array,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override: int | None = None,
):
    """The mean of each window, or its sum over divisor_override.

    input [N, C, H, W] or [C, H, W] -> [N, C, rows, columns] in the input's dtype, summed in float32 and rounded once.
    stride: by default the kernel. The padding counts as zeros unless count_include_pad is False.
    Raises ShapeError if no window fits, ArgumentError for padding beyond half the kernel.
    """
    w = pool_windows("avg_pool2d", input, kernel_size, stride, padding, 1, ceil_mode)
    return _means_of(input, w, padding, count_include_pad, divisor_override)


@op(cast=Cast.KEEP, integers="refuse")
def avg_pool3d(
    input: Array,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override: int | None = None,
):
    """The mean of each window of volumes: input [N, C, D, H, W] or [C, D, H, W]; see `avg_pool2d`."""
    w = pool_windows("avg_pool3d", input, kernel_size, stride, padding, 1, ceil_mode, 3)
    return _means_of(input, w, padding, count_include_pad, divisor_override)


def _means_of(input: Array, w: ConvGeometry, *counted: Any) -> Any:
    source, total = padded(batched(input, len(w.input_size)), w), 0
    for _, there in w.taps():
        total = source[there] + total
    return unbatched(batch_first(total) / _divisor(source, w, *counted), input.ndim), Saved(geometry=w)


def avg_pool_backward(dy, saved, needs, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    w = saved.geometry
    axes, share = len(w.input_size), dy / _divisor(plain(dy), w, padding, count_include_pad, divisor_override)
    if isinstance(share, TracedArray):
        return _spread_taped(share, np.ones_like(plain(dy), shape=(prod(w.kernel), *(1,) * axes)), w)
    moved = batch_last(batched(share, axes))
    home = np.zeros_like(moved, shape=(len(moved), *w.padded_size, moved.shape[-1]), order="C")
    for _, there in w.taps():
        home[there] += moved
    return unbatched(batch_first(w.crop(home)), dy.ndim)


def _divisor(like: Array, w: ConvGeometry, padding: Any, count_include_pad: bool, override: Any) -> Any:
    # A number where all windows hold equally many pixels, else an array [rows, columns] of the dtype of `like`.
    first = pair("avg_pool", "padding", padding, 0, len(w.input_size))
    over = any(after != p for (_, after), p in zip(w.padding, first, strict=True))
    # ceil_mode's last windows reach beyond any padding, and that never counts
    if override is not None or (not over and (count_include_pad or not any(first))):
        return prod(w.kernel) if override is None else override
    inside, total = np.zeros_like(like, shape=(1, *w.padded_size)), 0
    edges = first if count_include_pad else (0,) * len(first)
    sides = zip(w.padding, w.input_size, edges, strict=True)
    inside[(0, *(slice(before - e, before + n + e) for (before, _), n, e in sides))] = 1
    for _, there in w.taps():
        total = inside[there] + total
    return total[0]


@op(cast=Cast.KEEP, integers="refuse")
def adaptive_avg_pool2d(input: Array, output_size):
    """The means of output_size windows that cover the image evenly.

    Window i of n takes the rows from floor(i H / n) to ceil((i + 1) H / n), and columns likewise.
    input [N, C, H, W] or [C, H, W] -> [N, C, *output_size] in the input's dtype, summed in float32 and rounded once.
    output_size: an integer or a pair, None for as many as there are. Raises ShapeError for another rank.
    """
    return _adapted("adaptive_avg_pool2d", input, output_size, 2)


@op(cast=Cast.KEEP, integers="refuse")
def adaptive_avg_pool3d(input: Array, output_size):
    """The means of output_size windows that cover volumes evenly: input [N, C, D, H, W] or [C, D, H, W] -> [N, C, ...].

    See `adaptive_avg_pool2d`.
    """
    return _adapted("adaptive_avg_pool3d", input, output_size, 3)


def _adapted(where: str, input: Array, output_size: Any, axes: int) -> Any:
    size = input.shape[-axes:]
    out, saved = adaptive_size(output_size, size, where), Saved(size=size)
    if any(n % m for n, m in zip(size, out, strict=True)):
        for i, (n, m) in enumerate(zip(size, out, strict=True), -axes):
            input = _along(input, _means(plain(input), n, m), i)
        return input, saved
    parts = [k for n, m in zip(size, out, strict=True) for k in (m, n // m)]
    windows = prod(n // m for n, m in zip(size, out, strict=True))
    return blocked_sum(input.reshape(*input.shape[:-axes], *parts), tuple(range(1 - 2 * axes, 0, 2))) / windows, saved


def adaptive_avg_pool_backward(dy, saved, needs, output_size):
    size, axes = saved.size, len(saved.size)
    out = dy.shape[-axes:]
    if any(n % m for n, m in zip(size, out, strict=True)):
        for i, (n, m) in enumerate(zip(size, out, strict=True), -axes):
            dy = _along(dy, _means(plain(dy), n, m).T, i)
        return dy
    sides = [n // m for n, m in zip(size, out, strict=True)]
    moved = batch_last(batched(dy / prod(sides), axes))  # batch innermost: as convolutions lay images out
    ones = np.ones_like(plain(dy), shape=(*(k for n in sides for k in (n, 1)),), order="C")
    spread = moved.reshape(moved.shape[0], *(k for m in out for k in (m, 1)), moved.shape[-1]) * ones
    return unbatched(batch_first(spread.reshape(moved.shape[0], *size, moved.shape[-1])), dy.ndim)


def _along(x: Array, matrix: Array, axis: int) -> Array:
    # x with the vectors along an axis multiplied by the matrix.
    moved = x.swapaxes(axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    found = rows @ matrix.T if isinstance(x, TracedArray) else times(rows, matrix.T)
    return found.reshape(*moved.shape[:-1], len(matrix)).swapaxes(axis, -1)


def _means(like: Array, n: int, windows: int) -> Array:
    # The matrix [windows, n] that takes the means.
    first, end = (edges[:, None] for edges in adaptive_windows(n, windows, like))
    pixel = np.arange(n, like=first)
    return ((pixel >= first) & (pixel < end)).astype(like.dtype) / (end - first).astype(like.dtype)


def adaptive_windows(n: int, windows: int, like: Any = None) -> tuple[Array, Array]:
    """Where the windows that cover `n` pixels evenly begin and end, int64 arrays, on the device of `like`."""
    number = np.arange(windows, like=like)
    return number * n // windows, -(-(number + 1) * n // windows)


def adaptive_size(output_size: Any, size: Any, where: str = "adaptive_avg_pool2d") -> tuple[int, ...]:
    """How many windows by axis an adaptive pool takes of images of `size`. Raises ArgumentError."""
    axes = len(size)
    asked = tuple(output_size) if isinstance(output_size, (list, tuple)) else (output_size,) * axes
    filled = tuple(n if a is None else a for a, n in zip(asked, size, strict=False))
    return addressable(where, pair(where, "output_size", filled if len(asked) == axes else asked, 1, axes))


def _spread_taped(dy: Any, weights: Array, w: ConvGeometry) -> Any:
    # dy [N, C, rows, columns] times weights [..., kernel, rows, columns], each put back where its tap read.
    *lead, channels = dy.shape[: -len(w.input_size)]
    columns = dy.reshape(*lead, channels, 1, *w.output_size) * weights
    return apply(fold_, columns.reshape(*lead, channels * prod(w.kernel), prod(w.output_size)), w)


def pool_windows(
    where: str, input: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, axes: int = 2
) -> ConvGeometry:
    """The windows of a pool's arguments. Raises as `windows`."""
    step = kernel if stride is None or (isinstance(stride, (list, tuple)) and not stride) else stride
    return conv_geometry(
        where, kernel, step, pair(where, "padding", padding, 0, axes), dilation, input.shape[-axes:], ceil
    )


def _check(where: str, input: Any, kernel_size: Any, padding: Any) -> None:
    axes = int(where[-2])
    need_images(where, input, axes)
    if input.dtype == np.bool_:
        raise DTypeError(where, "numbers", "bool", "cast it: x.float()")
    kernel, pads = pair(where, "kernel_size", kernel_size, 1, axes), pair(where, "padding", padding, 0, axes)
    if any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
        raise ArgumentError(where, f"padding of at most half the kernel {kernel}", f"{pads}")


def need_images(where: str, input: Any, axes: int) -> None:
    """Raise ShapeError for anything but images of that many axes, a batch of them or one."""
    shape, names = tuple(getattr(input, "shape", ())), ("L", "H, W", "D, H, W")[axes - 1]
    if len(shape) not in (axes + 1, axes + 2):
        raise ShapeError(where, f"input [N, C, {names}] or [C, {names}]", f"input {list(shape)}")


def need_pixels(where: str, input: Any, output_size: Any) -> None:
    """Raise for what an adaptive pool cannot take: ShapeError as `need_images`, or without pixels; ArgumentError."""
    axes = int(where[-2])
    need_images(where, input, axes)
    if input.dtype == np.bool_:
        raise DTypeError(where, "numbers", "bool", "cast it: x.float()")
    if 0 in input.shape[-axes:]:
        raise ShapeError(where, "images of at least one pixel", f"input {list(input.shape)}")
    adaptive_size(output_size, input.shape[-axes:], where)


def _maximum(op: Op) -> None:
    def check(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices):
        _check(op.name, input, kernel_size, padding)

    op.check(check)
    op.backward(max_pool_backward)


def _mean(op: Op) -> None:
    def check(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
        _check(op.name, input, kernel_size, padding)
        if divisor_override is not None and divisor_override == 0:
            raise ArgumentError(op.name, "a divisor_override other than 0", "0")

    op.check(check)
    op.backward(avg_pool_backward)


def _adaptive_mean(op: Op) -> None:
    def check(input, output_size):
        need_pixels(op.name, input, output_size)

    op.check(check)
    op.backward(adaptive_avg_pool_backward)


for _op in (max_pool2d, max_pool3d):
    _maximum(_op)
for _op in (avg_pool2d, avg_pool3d):
    _mean(_op)
for _op in (adaptive_avg_pool2d, adaptive_avg_pool3d):
    _adaptive_mean(_op)

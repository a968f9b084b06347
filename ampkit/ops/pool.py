"""Pooling: one number per window of an image, its largest or its mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.dtypes import FLOATS
from ..core.errors import ArgumentError, ShapeError
from ..core.op import Array, Saved, op
from ..core.policy import Cast
from ..core.replay import Taped, apply, plain
from .windows import Windows, batched, fold, padded, pair, unbatched, windows

__all__ = ["adaptive_avg_pool2d", "avg_pool2d", "max_pool2d"]


@op(cast=Cast.KEEP)
def max_pool2d(input: Array, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """The largest value of each window; NaN if there is one.

    input [N, C, H, W] or [C, H, W] -> [N, C, rows, columns] in the input's dtype, exact; with return_indices also the
    places of these values in H * W, int64. stride: by default the kernel. The gradient goes to the first of equals.
    Raises ShapeError if no window fits, ArgumentError for padding beyond half the kernel.
    """
    w = pool_windows("max_pool2d", input, kernel_size, stride, padding, dilation, ceil_mode)
    lowest = -np.inf if input.dtype in FLOATS else np.iinfo(input.dtype).min
    source, best, place = padded(batched(input), w, lowest), None, None
    small = np.min_scalar_type(w.kernel[0] * w.kernel[1])
    for k, (_, _, down, across) in enumerate(w.taps()):
        values = source[:, down, across]
        if best is None:
            best, place = values.copy(), np.zeros_like(values, dtype=small, order="C")
            continue
        better = values > best
        better |= values != values
        np.maximum(best, values, out=best)
        np.maximum(place, better * place.dtype.type(k), out=place)
    best, place = (unbatched(found.transpose(3, 0, 1, 2), input.ndim) for found in (best, place))
    saved = Saved(place=place, windows=w)
    return ((best, positions(place, w)), saved) if return_indices else (best, saved)


@max_pool2d.check
def max_pool2d_check(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices):
    _check("max_pool2d", input, kernel_size, padding)


@max_pool2d.backward
def max_pool2d_backward(dy, saved, needs, kernel_size, stride, padding, dilation, ceil_mode, return_indices):
    dy, w, place = dy[0] if return_indices else dy, saved.windows, saved.place
    if isinstance(dy, Taped):
        taps = np.arange(w.kernel[0] * w.kernel[1], like=place).reshape(-1, 1, 1)
        return _spread_taped(dy, place[..., None, :, :] == taps, w)
    moved, place = batched(dy).transpose(1, 2, 3, 0), batched(place).transpose(1, 2, 3, 0)
    home = np.zeros_like(moved, shape=(len(moved), *w.padded, moved.shape[3]), order="C")
    for k, (_, _, down, across) in enumerate(w.taps()):
        home[:, down, across] += np.where(place == k, moved, 0)
    return unbatched(w.crop(home).transpose(3, 0, 1, 2), dy.ndim)


def positions(place: Array, w: Windows) -> Array:
    """Within its image, the flat position of the tap that each window chose: int64, of the shape of `place`."""
    rows, columns = (np.arange(n, like=place).astype(np.int64) for n in w.count)
    tap = place.astype(np.int64)
    high = rows[:, None] * w.stride[0] + tap // w.kernel[1] * w.dilation[0] - w.pads[0][0]
    return high * w.size[1] + columns * w.stride[1] + tap % w.kernel[1] * w.dilation[1] - w.pads[1][0]


@op(cast=Cast.KEEP, integers="refuse")
def avg_pool2d(
    input: Array,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    """The mean of each window, or its sum over divisor_override.

    input [N, C, H, W] or [C, H, W] -> [N, C, rows, columns] in the input's dtype, summed in float32 and rounded once.
    stride: by default the kernel. The padding counts as zeros unless count_include_pad is False.
    Raises ShapeError if no window fits, ArgumentError for padding beyond half the kernel.
    """
    w = pool_windows("avg_pool2d", input, kernel_size, stride, padding, 1, ceil_mode)
    source, total = padded(batched(input), w), 0
    for _, _, down, across in w.taps():
        total = source[:, down, across] + total
    means = total.transpose(3, 0, 1, 2) / _divisor(source, w, padding, count_include_pad, divisor_override)
    return unbatched(means, input.ndim), Saved(windows=w)


@avg_pool2d.check
def avg_pool2d_check(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    _check("avg_pool2d", input, kernel_size, padding)
    if divisor_override is not None and divisor_override == 0:
        raise ArgumentError("avg_pool2d", "a divisor_override other than 0", "0")


@avg_pool2d.backward
def avg_pool2d_backward(dy, saved, needs, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    w = saved.windows
    share = dy / _divisor(plain(dy), w, padding, count_include_pad, divisor_override)
    if isinstance(share, Taped):
        return _spread_taped(share, np.ones_like(plain(dy), shape=(w.kernel[0] * w.kernel[1], 1, 1)), w)
    moved = batched(share).transpose(1, 2, 3, 0)
    home = np.zeros_like(moved, shape=(len(moved), *w.padded, moved.shape[3]), order="C")
    for _, _, down, across in w.taps():
        home[:, down, across] += moved
    return unbatched(w.crop(home).transpose(3, 0, 1, 2), dy.ndim)


def _divisor(like: Array, w: Windows, padding: Any, count_include_pad: bool, override: Any) -> Any:
    # A number where all windows hold equally many pixels, else an array [rows, columns] of the dtype of `like`.
    (top, bottom), (left, right) = w.pads
    first = pair("avg_pool2d", "padding", padding, 0)
    over = (bottom, right) != first  # ceil_mode's last windows reach beyond any padding, and that never counts
    if override is not None or (not over and (count_include_pad or first == (0, 0))):
        return w.kernel[0] * w.kernel[1] if override is None else override
    inside, total = np.zeros_like(like, shape=w.padded), 0
    edge = first if count_include_pad else (0, 0)
    inside[top - edge[0] : top + w.size[0] + edge[0], left - edge[1] : left + w.size[1] + edge[1]] = 1
    for _, _, down, across in w.taps():
        total = inside[down, across] + total
    return total


@op(cast=Cast.KEEP, integers="refuse")
def adaptive_avg_pool2d(input: Array, output_size):
    """The means of output_size windows that cover the image evenly.

    Window i of n takes the rows from floor(i H / n) to ceil((i + 1) H / n), and columns likewise.
    input [N, C, H, W] or [C, H, W] -> [N, C, *output_size] in the input's dtype, summed in float32 and rounded once.
    output_size: an integer or a pair, None for as many as there are. Raises ShapeError for another rank.
    """
    size, out = input.shape[-2:], adaptive_size(output_size, input.shape[-2:])
    saved = Saved(size=size)
    if size[0] % out[0] or size[1] % out[1]:
        down, across = (_means(plain(input), n, m) for n, m in zip(size, out, strict=True))
        return down @ input @ across.T, saved
    parts = input.reshape(*input.shape[:-2], out[0], size[0] // out[0], out[1], size[1] // out[1])
    return parts.mean((-3, -1)), saved


@adaptive_avg_pool2d.check
def adaptive_avg_pool2d_check(input, output_size):
    shape = np.shape(input)
    if len(shape) not in (3, 4) or 0 in shape[-2:]:
        raise ShapeError("adaptive_avg_pool2d", "input [N, C, H, W] or [C, H, W]", f"input {list(shape)}")
    adaptive_size(output_size, shape[-2:])


@adaptive_avg_pool2d.backward
def adaptive_avg_pool2d_backward(dy, saved, needs, output_size):
    size, out = saved.size, dy.shape[-2:]
    if size[0] % out[0] or size[1] % out[1]:
        down, across = (_means(plain(dy), n, m) for n, m in zip(size, out, strict=True))
        return down.T @ dy @ across
    high, wide = size[0] // out[0], size[1] // out[1]
    moved = batched(dy / (high * wide)).transpose(1, 2, 3, 0)  # batch innermost: as convolutions lay images out
    channels, batch = moved.shape[0], moved.shape[3]
    ones = np.ones_like(plain(dy), shape=(high, 1, wide, 1), order="C")
    spread = moved.reshape(channels, out[0], 1, out[1], 1, batch) * ones
    return unbatched(spread.reshape(channels, *size, batch).transpose(3, 0, 1, 2), dy.ndim)


def _means(like: Array, n: int, windows: int) -> Array:
    # The matrix [windows, n] that takes the means.
    matrix = np.zeros_like(like, shape=(windows, n), order="C")
    for i in range(windows):
        first, end = i * n // windows, -(-(i + 1) * n // windows)
        matrix[i, first:end] = 1 / (end - first)
    return matrix


def adaptive_size(output_size: Any, size: Any) -> tuple[int, int]:
    """How many windows by axis adaptive_avg_pool2d takes of images of `size`. Raises ArgumentError."""
    asked = output_size if isinstance(output_size, (list, tuple)) else (output_size, output_size)
    filled = tuple(n if a is None else a for a, n in zip(asked, size, strict=False))
    return pair("adaptive_avg_pool2d", "output_size", filled if len(asked) == 2 else asked, 1)


def _spread_taped(dy: Any, weights: Array, w: Windows) -> Any:
    # dy [N, C, rows, columns] times weights [..., kernel, rows, columns], each put back where its tap read.
    lead, total, taps = dy.shape[:-2], w.count[0] * w.count[1], w.kernel[0] * w.kernel[1]
    columns = dy.reshape(*lead, 1, *w.count) * weights
    columns = columns.reshape(*lead[:-1], lead[-1] * taps, total)
    return apply(fold, columns, w.size, w.kernel, w.dilation, w.pads, w.stride)


def pool_windows(
    where: str, input: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Windows:
    """The windows of a pool's arguments. Raises as `windows`."""
    step = kernel if stride is None or (isinstance(stride, (list, tuple)) and not stride) else stride
    return windows(where, kernel, step, pair(where, "padding", padding, 0), dilation, input.shape[-2:], ceil)


def _check(where: str, input: Any, kernel_size: Any, padding: Any) -> None:
    shape = np.shape(input)
    if len(shape) not in (3, 4):
        raise ShapeError(where, "input [N, C, H, W] or [C, H, W]", f"input {list(shape)}")
    kernel, pads = pair(where, "kernel_size", kernel_size, 1), pair(where, "padding", padding, 0)
    if any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
        raise ArgumentError(where, f"padding of at most half the kernel {kernel}", f"{pads}")

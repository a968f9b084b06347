"""Pooling to a requested number of windows: adaptive, which cover the input evenly, and fractional, drawn at random.

Window i of n of an adaptive pool spans the pixels from floor(i L / n) to ceil((i + 1) L / n) of an axis of length L.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.base.memory_format import channels_are_last, channels_last, channels_last_3d
from ampkit.core.autograd.traced_array import TracedArray, plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_addressable, int_tuple
from ..creation.random import rand
from ..indexing.deterministic_scatter import index_on_device_of
from ..indexing.gather_scatter import gather
from ..named import named
from ..pointwise.conversion import contiguous, stored_like
from ..reduction.dot_products import matmul_arrays
from ..shape.view import flatten, reshape, squeeze, unsqueeze
from .conv_geometry import batch_first, batch_last, batched, unbatched
from .pool import check_images, max_pool1d, max_pool2d, max_pool3d, of_row

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d",
]  # fmt: skip


def adaptive_windows(n: int, windows: int, like: Any = None) -> tuple[Array, Array]:
    """The first pixels and the ends of `windows` windows over `n` pixels: int64 arrays, on the device of `like`."""
    number = np.arange(windows, like=like)
    return number * n // windows, -(-(number + 1) * n // windows)


def adaptive_size(output_size: Any, size: Any, where: str = "adaptive_avg_pool2d") -> tuple[int, ...]:
    """output_size with an integer per axis, for inputs of `size`. Raises ArgumentError."""
    axes = len(size)
    asked = tuple(output_size) if isinstance(output_size, (list, tuple)) else (output_size,) * axes
    filled = tuple(n if a is None else a for a, n in zip(asked, size, strict=False))
    return check_addressable(where, int_tuple(where, "output_size", filled if len(asked) == axes else asked, 1, axes))


def _check(where: str, axes: int, input: Any, output_size: Any) -> tuple[int, ...]:
    # -> output_size with an integer per axis
    check_images(where, input, axes)
    if input.dtype == np.bool_:
        raise DTypeError(where, "numbers", "bool", "cast it: x.float()")
    if 0 in input.shape[-axes:]:
        raise ShapeError(where, "images of at least one pixel", f"input {list(input.shape)}")
    return adaptive_size(output_size, tuple(input.shape[-axes:]), where)


def _adaptive_average(axes: int, doc: str) -> Op:
    name = f"adaptive_avg_pool{axes}d"

    @op(cast=Cast.KEEP, integers="refuse")
    @named(name, doc)
    def pool(input: Array, output_size):
        size = input.shape[-axes:]
        means = _window_means(input, size, adaptive_size(output_size, size, name))
        return stored_like(plain(input), means), Saved(size=size)

    pool.check(lambda input, output_size: _check(name, axes, input, output_size))
    pool.backward(adaptive_avg_pool_backward)
    return pool


def _window_means(input: Array, size: tuple[int, ...], out: tuple[int, ...]) -> Array:
    axes = len(size)
    if _is_uneven(size, out):
        for axis, (n, m) in enumerate(zip(size, out, strict=True), -axes):
            input = _times_along(input, _mean_matrix(plain(input), n, m), axis)
        return input
    split = [k for n, m in zip(size, out, strict=True) for k in (m, n // m)]
    area = prod(n // m for n, m in zip(size, out, strict=True))
    return blocked_sum(input.reshape(*input.shape[:-axes], *split), tuple(range(1 - 2 * axes, 0, 2))) / area


def adaptive_avg_pool_backward(dy, saved, needs, output_size):
    size, axes = saved.size, len(saved.size)
    out = dy.shape[-axes:]
    if _is_uneven(size, out):
        for axis, (n, m) in enumerate(zip(size, out, strict=True), -axes):
            dy = _times_along(dy, _mean_matrix(plain(dy), n, m).T, axis)
        return dy
    window = [n // m for n, m in zip(size, out, strict=True)]
    moved = batch_last(batched(dy / prod(window), axes))  # batch innermost, the layout of convolutions
    ones = np.ones_like(plain(dy), shape=tuple([k for n in window for k in (n, 1)]), order="C")
    spread = moved.reshape(moved.shape[0], *(k for m in out for k in (m, 1)), moved.shape[-1]) * ones
    return unbatched(batch_first(spread.reshape(moved.shape[0], *size, moved.shape[-1])), dy.ndim)


def _is_uneven(size: tuple[int, ...], out: tuple[int, ...]) -> bool:
    # Whether windows overlap, or differ in length.
    return any(n % m for n, m in zip(size, out, strict=True))


def _times_along(x: Array, matrix: Array, axis: int) -> Array:
    # matrix @ each vector of x along an axis.
    moved = x.swapaxes(axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    found = rows @ matrix.T if isinstance(x, TracedArray) else matmul_arrays(rows, matrix.T)
    return found.reshape(*moved.shape[:-1], len(matrix)).swapaxes(axis, -1)


def _mean_matrix(like: Array, n: int, windows: int) -> Array:
    # [windows, n]: times a vector of n pixels it gives the mean of each window.
    first, end = (edges[:, None] for edges in adaptive_windows(n, windows, like))
    pixel = np.arange(n, like=first)
    return ((pixel >= first) & (pixel < end)).astype(like.dtype) / (end - first).astype(like.dtype)


adaptive_avg_pool2d = _adaptive_average(
    2,
    """The mean of each of output_size windows that cover the image evenly.

    input [N, C, H, W] or [C, H, W] -> [N, C, *output_size] in the input's dtype, summed in float32 and rounded once.
    output_size: an integer or a pair; None keeps the length of that axis. Raises ShapeError for another rank.
    """,
)
adaptive_avg_pool3d = _adaptive_average(
    3,
    """The mean of each of output_size windows that cover volumes evenly: input [N, C, D, H, W] or [C, D, H, W].

    See `adaptive_avg_pool2d`.
    """,
)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of output_size windows: input [N, C, L] or [C, L] -> [N, C, output_size]."""
    return squeeze(adaptive_avg_pool2d(unsqueeze(input, -2), of_row(1, output_size)), -2)


@op(cast=Cast.KEEP, moves=True)
def adaptive_max_pool_(input: Array, output_size):
    """The flat index of the maximum of each window: input [..., *size] -> [..., *output_size] int64.

    Of equal values the first, of NaNs the last.
    """
    size = input.shape[-len(output_size) :]
    tables = [_taps(n, m) for n, m in zip(size, output_size, strict=True)]
    best: Any = None
    for taps in product(*tables):
        values, flat = input, 0
        for axis, (n, tap) in enumerate(zip(size, taps, strict=True), -len(output_size)):
            values, flat = np.take(values, index_on_device_of(input, tap), axis), np.expand_dims(flat * n, -1) + tap
        index = index_on_device_of(input, flat)
        if best is None:
            best, argmax = values, np.zeros_like(values, np.int64) + index
            continue
        better = (values > best) | (values != values)
        best, argmax = np.where(better, values, best), np.where(better, index, argmax)
    return argmax


def _taps(n: int, windows: int) -> Any:
    # [positions, windows]: the pixel at each position of each window; shorter windows repeat their last pixel.
    first, end = adaptive_windows(n, windows)
    return np.minimum(first + np.arange((end - first).max())[:, None], end - 1)


_POOLS: dict[int, Any] = {1: max_pool1d, 2: max_pool2d, 3: max_pool3d}
_BYTE = 256  # pixels of a window whose maximum's position a byte holds


def _adaptive_max(axes: int, input: Tensor, output_size: Any, return_indices: bool) -> Any:
    where = f"adaptive_max_pool{axes}d"
    windows, size = _check(where, axes, input, output_size), input.array.shape[-axes:]
    kernel = tuple([n // m for n, m in zip(size, windows, strict=True)])
    if prod(kernel) < _BYTE and all(n == m * k for n, m, k in zip(size, windows, kernel, strict=True)):
        return _POOLS[axes](input, kernel, return_indices=return_indices)  # windows of one size, side by side
    indices = adaptive_max_pool_(input, windows)
    values = reshape(gather(flatten(input, -axes), -1, flatten(indices, -axes)), indices.shape)
    if channels_are_last(input.array) and input.ndim in (4, 5):
        last = channels_last if input.ndim == 4 else channels_last_3d
        values, indices = contiguous(values, last), contiguous(indices, last)
    return (values, indices) if return_indices else values


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maximum of each of output_size windows: input [N, C, L] or [C, L]; see `adaptive_max_pool2d`."""
    return _adaptive_max(1, input, output_size, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maximum of each of output_size windows that cover the image evenly.

    input [N, C, H, W] or [C, H, W] -> [N, C, *output_size] in the input's dtype, exact; NaN if a window contains one;
    with return_indices also the flat indices of these values in H * W, int64. output_size: an integer or one per axis;
    None keeps the length of that axis. Raises ShapeError for another rank, ArgumentError for another output_size.
    """
    return _adaptive_max(2, input, output_size, return_indices)


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maximum of each of output_size windows: input [N, C, D, H, W] or [C, D, H, W].

    See `adaptive_max_pool2d`.
    """
    return _adaptive_max(3, input, output_size, return_indices)


def _fractional_max(
    axes: int, input: Tensor, kernel_size: Any, output_size: Any, ratio: Any, return_indices: bool, samples: Any
) -> Any:
    where = f"fractional_max_pool{axes}d"
    check_images(where, input, axes)
    kernel = _per_axis(where, "kernel_size", kernel_size, 1, axes)
    size, lead = tuple(input.shape[-axes:]), tuple(input.shape[:-axes])
    out = _output_size(where, size, output_size, ratio)
    if any(o + k - 1 > n for n, o, k in zip(size, out, kernel, strict=True)) or not lead[-1]:
        needs = f"a channel, and room for {out} windows of {kernel}, one pixel apart at least"
        raise ShapeError(where, needs, f"shape {tuple(input.shape)}")
    shape = (*(lead if len(lead) == 2 else (1, *lead)), axes)
    if samples is None:
        samples = rand(*shape, dtype=accumulator(input.array.dtype), device=input.device)
    elif isinstance(samples, Tensor) and samples.ndim == 3 and samples.shape[0] > shape[0]:
        samples = samples[: shape[0]]
    if not isinstance(samples, Tensor) or samples.shape != shape:
        got = f"{tuple(samples.shape)}" if isinstance(samples, Tensor) else type(samples).__name__
        raise ShapeError(where, f"_random_samples of shape {shape}", got)
    with backends.device_guard(input.array, samples.array, where=where):
        found = _argmax(input.array.reshape(*shape[:2], *size), samples.array, kernel, out)
    indices = Tensor(found.reshape(*lead, *out))
    values = reshape(gather(flatten(input, -axes), -1, flatten(indices, -axes)), indices.shape)
    return (values, indices) if return_indices else values


def _per_axis(where: str, name: str, value: Any, low: int, axes: int) -> tuple[int, ...]:
    if isinstance(value, (tuple, list)) and len(value) != axes:
        raise ArgumentError(where, f"{name} as an integer or {axes} of them", repr(value))
    return int_tuple(where, name, value, low, axes)


def _output_size(where: str, size: tuple[int, ...], output_size: Any, ratio: Any) -> tuple[int, ...]:
    if output_size is not None:
        return _per_axis(where, "output_size", output_size, 0, len(size))
    ratios = tuple(ratio) if isinstance(ratio, (tuple, list)) else (ratio,) * len(size)
    if len(ratios) != len(size) or not all(isinstance(r, (int, float)) and 0 < r < 1 for r in ratios):
        needs = f"output_size, or output_ratio as {len(size)} numbers between 0 and 1"
        raise ArgumentError(where, needs, "neither" if ratio is None else repr(ratio))
    return tuple([int(n * r) for n, r in zip(size, ratios, strict=True)])


def _argmax(x: Any, samples: Any, kernel: tuple[int, ...], out: tuple[int, ...]) -> Any:
    # [N, C, *size] -> [N, C, *out]: the index of the largest element of each window in the flattened image; of NaN.
    axes, index = len(out), 0
    for axis, (n, k, o) in enumerate(zip(x.shape[2:], kernel, out, strict=True)):
        sample = samples[..., axes - 1 - axis] if axes == 2 else samples[..., axis]  # PyTorch draws x before y
        pixels = _starts(sample, n, k, o)[..., None] + np.arange(k, like=x)
        spread: list[Any] = [slice(None), slice(None), *[None] * (2 * axes)]
        spread[2 + axis] = spread[2 + axes + axis] = slice(None)
        index = index * n + pixels[tuple(spread)]
    flat = np.reshape(index, (*x.shape[:2], prod(out), prod(kernel)))
    values = np.take_along_axis(x.reshape(*x.shape[:2], 1, prod(x.shape[2:])), flat, -1)
    return np.take_along_axis(flat, np.argmax(values, -1)[..., None], -1)


def _starts(sample: Any, n: int, k: int, o: int) -> Any:
    # The first pixel of each of `o` windows of `k` among `n` pixels, [N, C, o]: those at the end touch it.
    u, step = sample[..., None].astype(np.float64), (n - k) / (o - 1) if o > 1 else 0.0
    i = np.arange(o, like=sample)
    drawn = np.floor((i + u) * step) - np.floor(u * step)
    return np.where(i == o - 1, n - k, drawn).astype(np.int64)


def fractional_max_pool2d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """The maximum of each of output_size windows, whose steps are drawn at random around an even spacing.

    input [N, C, H, W] or [C, H, W] -> [N, C, *output_size] in the input's dtype, exact; NaN if a window contains one;
    with return_indices also the flat indices of these values in H * W, int64. kernel_size: of the windows, which may
    overlap; output_size, or output_ratio, the share of each axis: a number or one per axis. _random_samples [N, C, 2]
    in [0, 1): the draws, of each sample and channel; rows beyond N are not read. Raises ShapeError for another rank and
    windows that do not fit, ArgumentError for another kernel_size, output_size or output_ratio.
    Graham 2014, arXiv:1412.6071.
    """
    return _fractional_max(2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples)


def fractional_max_pool3d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """The maximum of each of output_size windows: input [N, C, D, H, W] or [C, D, H, W], _random_samples [N, C, 3].

    See `fractional_max_pool2d`.
    """
    return _fractional_max(3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples)

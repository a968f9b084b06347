"""Fractional max pooling: windows whose places are drawn at random, so that the output may have almost any size."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.tensor import Tensor

from ..argument_checks import int_tuple
from ..creation.random import rand
from ..indexing.gather_scatter import gather
from ..shape.view import flatten, reshape
from .pool import check_images

__all__ = ["fractional_max_pool2d", "fractional_max_pool3d"]


def _fractional_max(
    axes: int, input: Tensor, kernel_size: Any, output_size: Any, ratio: Any, return_indices: bool, samples: Any
) -> Any:
    where = f"fractional_max_pool{axes}d"
    check_images(where, input, axes)
    kernel = int_tuple(where, "kernel_size", kernel_size, 1, axes)
    size, lead = tuple(input.shape[-axes:]), tuple(input.shape[:-axes])
    out = _output_size(where, size, output_size, ratio)
    if any(o + k - 1 > n for n, o, k in zip(size, out, kernel, strict=True)) or not lead[-1]:
        needs = f"a channel, and room for {out} windows of {kernel}, one pixel apart at least"
        raise ShapeError(where, needs, f"shape {tuple(input.shape)}")
    shape = (*(lead if len(lead) == 2 else (1, *lead)), axes)
    if samples is None:
        samples = rand(*shape, dtype=accumulator(input.array.dtype), device=input.device)
    if not isinstance(samples, Tensor) or samples.shape != shape:
        got = f"{tuple(samples.shape)}" if isinstance(samples, Tensor) else type(samples).__name__
        raise ShapeError(where, f"_random_samples of shape {shape}", got)
    with backends.device_guard(input.array, samples.array, where=where):
        found = _argmax(input.array.reshape(*shape[:2], *size), samples.array, kernel, out)
    indices = Tensor(found.reshape(*lead, *out))
    values = reshape(gather(flatten(input, -axes), -1, flatten(indices, -axes)), indices.shape)
    return (values, indices) if return_indices else values


def _output_size(where: str, size: tuple[int, ...], output_size: Any, ratio: Any) -> tuple[int, ...]:
    if output_size is not None:
        return int_tuple(where, "output_size", output_size, 0, len(size))
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
    in [0, 1): the draws, of each sample and channel. Raises ShapeError for another rank and windows that do not fit,
    ArgumentError for another output_size or output_ratio.
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

"""Adaptive maxima: the largest value of each of as many windows as are asked for, gathered from where it stands."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from ampkit.core.op import Array, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..indexing.gather import gather
from ..indexing.subscript import beside
from ..shape.view import flatten, reshape
from .pool import adaptive_size, adaptive_windows, need_pixels

__all__ = ["adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"]


@op(cast=Cast.KEEP, moves=True)
def adaptive_max_pool_(input: Array, out):
    """Where in its image the largest value of each window stands: input [..., *size] -> [..., *out] int64.

    Of equal values the first, of NaNs the last.
    """
    size = input.shape[-len(out) :]
    tables = [_taps(n, m) for n, m in zip(size, out, strict=True)]
    best: Any = None
    for taps in product(*tables):
        values, flat = input, 0
        for i, (n, tap) in enumerate(zip(size, taps, strict=True), -len(out)):
            values, flat = np.take(values, beside(input, tap), i), np.expand_dims(flat * n, -1) + tap
        at = beside(input, flat)
        if best is None:
            best, place = values, np.zeros_like(values, np.int64) + at
            continue
        better = (values > best) | (values != values)
        best, place = np.where(better, values, best), np.where(better, at, place)
    return place


def _taps(n: int, windows: int) -> Any:
    # Per position in a window, the pixel that it is in each of them; the shorter ones repeat their last.
    first, end = adaptive_windows(n, windows)
    return np.minimum(first + np.arange((end - first).max())[:, None], end - 1)


def _pooled(where: str, input: Tensor, output_size: Any, return_indices: bool) -> Any:
    axes = int(where[-2])
    need_pixels(where, input, output_size)
    place = adaptive_max_pool_(input, adaptive_size(output_size, tuple(input.shape[-axes:]), where))
    values = reshape(gather(flatten(input, -axes), -1, flatten(place, -axes)), place.shape)
    return (values, place) if return_indices else values


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest value of each of output_size windows: input [N, C, L] or [C, L]; see `adaptive_max_pool2d`."""
    return _pooled("adaptive_max_pool1d", input, output_size, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest value of each of output_size windows that cover the image evenly, as `adaptive_avg_pool2d` has them.

    input [N, C, H, W] or [C, H, W] -> [N, C, *output_size] in the input's dtype, exact; NaN if there is one; with
    return_indices also the places of these values in H * W, int64. output_size: an integer or one per axis, None for as
    many as there are. Raises ShapeError for another rank, ArgumentError for another output_size.
    """
    return _pooled("adaptive_max_pool2d", input, output_size, return_indices)


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest value of each of output_size windows: input [N, C, D, H, W] or [C, D, H, W].

    See `adaptive_max_pool2d`.
    """
    return _pooled("adaptive_max_pool3d", input, output_size, return_indices)

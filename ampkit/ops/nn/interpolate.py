"""Interpolation: images, sequences and volumes in another size.

Every mode but area makes a new element of a few old ones along each axis: of the nearest one, or of a mixture. That is
linear, and its transpose is of the same kind, so one op is both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_addressable
from ..indexing.deterministic_scatter import index_on_device_of
from .adaptive_pool import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

__all__ = ["interpolate"]

_AXES = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}  # the mode, and the axes that the input then has
_AREAS = {3: adaptive_avg_pool1d, 4: adaptive_avg_pool2d, 5: adaptive_avg_pool3d}


class Taps(NamedTuple):
    """Along one axis of `old` elements, of which of them, and how much of each, every new one is made.

    places [T, new] int64; weights [T, new] float64, or None for one element each.
    """

    places: Any
    weights: Any
    old: int

    def transposed(self) -> Taps:
        """The taps that take new elements back to the old ones: where an old one has fewer, some of weight 0."""
        new = self.places.shape[1]
        order = np.argsort(self.places.ravel(), kind="stable")
        place = self.places.ravel()[order]
        count = np.bincount(place, minlength=self.old)
        nth = np.arange(place.size) - (np.cumsum(count) - count)[place]
        places, weights = np.zeros((2, max(count.max(), 1), self.old))
        places[nth, place] = order % new
        weights[nth, place] = 1 if self.weights is None else self.weights.ravel()[order]
        return Taps(places.astype(np.int64), weights, new)


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """input in another size, each pixel the nearest one, a mixture of its neighbours, or the mean of an area.

    input [N, C, L], [N, C, H, W] or [N, C, D, H, W] -> [N, C, *size], by size or by scale_factor, numbers for all axes
    or one each. mode: "nearest", "nearest-exact", "linear", "bilinear" or "trilinear" (by the number of axes),
    "bicubic" (images), "area". align_corners=True sets the outer pixels on each other; antialias=True (bilinear and
    bicubic) widens what is mixed where images shrink. Mixtures are computed in float32 and rounded once.
    Raises ArgumentError for other modes and for both or neither of size and scale_factor, ShapeError for an input that
    does not fit the mode, DTypeError for mixtures of integers.
    Keys 1981, "Cubic convolution interpolation for digital image processing", sec. II; a = -0.75 (antialias: -0.5).
    """
    sizes, steps = _sizes(input, size, scale_factor, bool(recompute_scale_factor))
    if align_corners is not None and mode not in _AXES:
        raise ArgumentError("interpolate", f"align_corners left out for mode {mode!r}", repr(align_corners))
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ArgumentError("interpolate", "antialias=False, or mode bilinear or bicubic", f"True for {mode!r}")
    if mode == "area":
        return _AREAS[input.ndim](input, sizes if input.ndim > 3 else sizes[0])
    if mode not in ("nearest", "nearest-exact"):
        if _AXES.get(mode) != input.ndim:
            needs = "mode nearest, nearest-exact, area, linear for 3 axes, bilinear or bicubic for 4, trilinear for 5"
            raise ArgumentError("interpolate", needs, f"{mode!r} for {input.ndim} axes")
        if not input.is_floating_point():
            raise DTypeError("interpolate", f"a floating-point tensor for mode {mode!r}", input.dtype.name)
        mode = f"{'cubic' if mode == 'bicubic' else 'linear'}{' antialiased' if antialias else ''}"
    if mode == "nearest" and input.ndim == 4:  # where images keep or double a side, PyTorch passes over scale_factor
        steps = tuple([n / m if m in (n, 2 * n) else s for n, m, s in zip(input.shape[2:], sizes, steps, strict=True)])
    sides = zip(tuple(input.shape[2:]), sizes, steps, strict=True)
    return interpolate_(input, tuple([_taps(mode, *side, bool(align_corners)) for side in sides]))


def _sizes(input: Tensor, size: Any, scale: Any, recompute: bool) -> tuple[tuple[int, ...], tuple[float, ...]]:
    # Per axis, the new length, and how far apart its pixels lie in the old one.
    lengths = tuple(input.shape[2:])
    if not 1 <= len(lengths) <= 3:
        raise ShapeError("interpolate", "input [N, C, L], [N, C, H, W] or [N, C, D, H, W]", f"{tuple(input.shape)}")
    if (size is None) == (scale is None):
        raise ArgumentError("interpolate", "size or scale_factor", "neither" if size is None else "both")
    given = size if scale is None else scale
    given = given.tolist() if isinstance(given, np.ndarray) else given
    each = tuple(given) if isinstance(given, (tuple, list)) else (given,) * len(lengths)
    whole = scale is not None or all(hasattr(n, "__index__") for n in each)
    if len(each) != len(lengths) or not whole or not all(0 < n < math.inf for n in each):
        kind = "integer" if scale is None else "number"
        raise ArgumentError("interpolate", f"a positive {kind}, or {len(lengths)} of them", repr(given))
    sizes = each if scale is None else tuple(int(n * s) for n, s in zip(lengths, each, strict=True))
    check_addressable("interpolate", sizes)
    if min(sizes) < 1 or 0 in lengths:
        raise ShapeError("interpolate", "at least one pixel", f"{lengths} to {sizes}")
    if scale is None or recompute:
        return sizes, tuple(n / m for n, m in zip(lengths, sizes, strict=True))
    return sizes, tuple(1 / s for s in each)


# the taps of an axis


@lru_cache(256)
def _taps(mode: str, old: int, new: int, step: float, corners: bool) -> Taps:
    if mode.startswith("nearest"):
        # In float32, as PyTorch rounds: which of two is nearest may hang on the last bit.
        offset = np.float32(0.5 * (mode == "nearest-exact"))
        near = np.floor((np.arange(new, dtype=np.float32) + offset) * np.float32(step)).astype(np.int64)
        return Taps(np.minimum(near, old - 1)[None], None, old)
    if corners:
        step = (old - 1) / (new - 1) if new > 1 else 0.0
    if mode.endswith("antialiased"):
        reach, kernel = (1, _triangle) if mode.startswith("linear") else (2, _cubic_of(-0.5))
        return _antialiased(old, new, step, reach, kernel)
    place = np.arange(new) * step if corners else (np.arange(new) + 0.5) * step - 0.5
    if mode == "linear":
        place = np.maximum(place, 0)
        low = np.minimum(np.floor(place).astype(np.int64), old - 1)
        return Taps(np.minimum(np.stack([low, low + 1]), old - 1), np.stack([1 - (place - low), place - low]), old)
    low = np.floor(place).astype(np.int64)
    four = np.arange(-1, 3)[:, None]
    weights = _cubic_of(-0.75)(place - low - four)
    return Taps(np.clip(low + four, 0, old - 1), weights, old)


def _antialiased(old: int, new: int, step: float, reach: float, kernel: Callable[[Any], Any]) -> Taps:
    # The kernel is as wide as `reach` of the coarser pixels; what lies beyond the edge is left out.
    wide = max(step, 1.0)
    centre = step * (np.arange(new) + 0.5)
    first = np.maximum((centre - reach * wide + 0.5).astype(np.int64), 0)
    end = np.minimum((centre + reach * wide + 0.5).astype(np.int64), old)
    place = first + np.arange(max((end - first).max(), 1))[:, None]
    weights = np.where(place < end, kernel((place - centre + 0.5) / wide), 0)
    return Taps(np.minimum(place, old - 1), weights / weights.sum(0), old)


def _triangle(x: Any) -> Any:
    return np.maximum(1 - np.abs(x), 0)


def _cubic_of(a: float) -> Callable[[Any], Any]:
    def cubic(x: Any) -> Any:
        x = np.abs(x)
        near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return cubic


# the op


@op(cast=Cast.FP32)
def interpolate_(input: Array, axes):
    """Each trailing axis of input made of the old elements that its Taps name: axes, one Taps each."""
    for i, (places, weights, _) in enumerate(axes, -len(axes)):
        at = input.ndim + i
        if weights is None:
            input = np.take(input, index_on_device_of(input, places[0]), at)
            continue
        share = np.asarray(weights, input.dtype).reshape(*weights.shape, *(1,) * (-1 - i))
        input = (np.take(input, index_on_device_of(input, places), at) * index_on_device_of(input, share)).sum(at)
    return input, Saved()


@interpolate_.backward
def interpolate_backward(dy, saved, needs, axes):
    return apply(interpolate_, dy, tuple([taps.transposed() for taps in axes]))

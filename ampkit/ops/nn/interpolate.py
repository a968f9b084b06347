"""Interpolation: resizing of sequences, images and volumes.

Every mode but area is a separable linear map with a few taps per output element along each axis. Its transpose has the
same form, so one op is both forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ampkit.base.dtypes import float32, uint8
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_addressable
from ..indexing.deterministic_scatter import index_on_device_of
from ..pointwise import sign_and_rounding as rounding
from ..pointwise.conversion import stored_like, to
from ..pointwise.selection import clamp
from .adaptive_pool import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

__all__ = ["interpolate"]
_AXES = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}  # the mode, and the axes that the input then has
_AREAS: dict[int, Any] = {3: adaptive_avg_pool1d, 4: adaptive_avg_pool2d, 5: adaptive_avg_pool3d}


@dataclass(frozen=True, eq=False)
class Taps:
    """The taps of each output element along one axis of `old` input elements.

    indices [T, new] int64; weights [T, new] float64, or None for one element each.
    """

    indices: Any
    weights: Any
    old: int

    def transposed(self) -> Taps:
        """The taps of the transpose; input elements with fewer taps than others get some of weight 0."""
        new = self.indices.shape[1]
        order = np.argsort(self.indices.ravel(), kind="stable")
        position = self.indices.ravel()[order]
        count = np.bincount(position, minlength=self.old)
        nth = np.arange(position.size) - (np.cumsum(count) - count)[position]
        indices, weights = np.zeros((2, max(count.max(), 1), self.old))
        indices[nth, position] = order % new
        weights[nth, position] = 1 if self.weights is None else self.weights.ravel()[order]
        return Taps(indices.astype(np.int64), weights, new)


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize input by nearest, linear, cubic or area interpolation.

    input [N, C, L], [N, C, H, W] or [N, C, D, H, W] -> [N, C, *size], by size or by scale_factor, one number for
    all axes or one each. mode: "nearest", "nearest-exact", "linear", "bilinear" or "trilinear" (by the number of axes),
    "bicubic" (images), "area". align_corners=True aligns the centers of the outer pixels; antialias=True (bilinear and
    bicubic) widens the kernel where images shrink. Computed in float32 and rounded once; images of uint8 are rounded to
    the nearest integer and clipped to 0 .. 255. The result is stored channels-last where input is.
    Raises ArgumentError for other modes and for both or neither of size and scale_factor, ShapeError for an input that
    does not fit the mode, DTypeError for other integers in modes other than nearest.
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
        if input.array.dtype == uint8 and input.ndim == 4:
            options = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
            found = interpolate(to(input, dtype=float32), *options)
            return to(clamp(rounding.round(found), 0, 255), dtype=uint8)
        if not input.is_floating_point():
            raise DTypeError("interpolate", f"a floating-point tensor for mode {mode!r}", input.dtype.name)
        mode = f"{'cubic' if mode == 'bicubic' else 'linear'}{' antialiased' if antialias else ''}"
    if mode == "nearest" and input.ndim == 4:  # if a side stays or doubles, PyTorch ignores scale_factor
        steps = tuple([n / m if m in (n, 2 * n) else s for n, m, s in zip(input.shape[2:], sizes, steps, strict=True)])
    sides = zip(tuple(input.shape[2:]), sizes, steps, strict=True)
    return interpolate_(input, tuple([_taps(mode, *side, bool(align_corners)) for side in sides]))


def _sizes(input: Tensor, size: Any, scale: Any, recompute: bool) -> tuple[tuple[int, ...], tuple[float, ...]]:
    # (new length per axis, distance of output pixels in input pixels per axis).
    lengths = tuple(input.shape[2:])
    if not 1 <= len(lengths) <= 3:
        raise ShapeError("interpolate", "input [N, C, L], [N, C, H, W] or [N, C, D, H, W]", f"{tuple(input.shape)}")
    if (size is None) == (scale is None):
        raise ArgumentError("interpolate", "size or scale_factor", "neither" if size is None else "both")
    wanted = size if scale is None else scale
    wanted = wanted.tolist() if isinstance(wanted, np.ndarray) else wanted
    each = tuple(wanted) if isinstance(wanted, (tuple, list)) else (wanted,) * len(lengths)
    whole = scale is not None or all(hasattr(n, "__index__") for n in each)
    if len(each) != len(lengths) or not whole or not all(0 < n < math.inf for n in each):
        kind = "integer" if scale is None else "number"
        raise ArgumentError("interpolate", f"a positive {kind}, or {len(lengths)} of them", repr(wanted))
    sizes = each if scale is None else tuple(int(n * s) for n, s in zip(lengths, each, strict=True))
    check_addressable("interpolate", sizes)
    if min(sizes) < 1 or 0 in lengths:
        raise ShapeError("interpolate", "at least one pixel", f"{lengths} to {sizes}")
    if scale is None or recompute:
        return sizes, tuple(n / m for n, m in zip(lengths, sizes, strict=True))
    return sizes, tuple(1 / s for s in each)


@lru_cache(256)
def _taps(mode: str, old: int, new: int, step: float, corners: bool) -> Taps:
    if mode.startswith("nearest"):
        # In float32, as in PyTorch: which of two is nearest may depend on the last bit.
        offset = np.float32(0.5 * (mode == "nearest-exact"))
        near = np.floor((np.arange(new, dtype=np.float32) + offset) * np.float32(step)).astype(np.int64)
        return Taps(np.minimum(near, old - 1)[None], None, old)
    if corners:
        step = (old - 1) / (new - 1) if new > 1 else 0.0
    if mode.endswith("antialiased"):
        linear = mode.startswith("linear")
        kernel = (lambda x: np.maximum(1 - np.abs(x), 0)) if linear else _cubic_of(-0.5)
        return _antialiased(old, new, step, 1 if linear else 2, kernel)
    position = np.arange(new) * step if corners else (np.arange(new) + 0.5) * step - 0.5
    if mode == "linear":
        position = np.maximum(position, 0)
        low = np.minimum(np.floor(position).astype(np.int64), old - 1)
        return Taps(
            np.minimum(np.stack([low, low + 1]), old - 1), np.stack([1 - (position - low), position - low]), old
        )
    low = np.floor(position).astype(np.int64)
    four = np.arange(-1, 3)[:, None]
    weights = _cubic_of(-0.75)(position - low - four)
    return Taps(np.clip(low + four, 0, old - 1), weights, old)


def _antialiased(old: int, new: int, step: float, reach: float, kernel: Callable[[Any], Any]) -> Taps:
    # The kernel spans `reach` of the coarser pixels on each side; taps beyond the edge are left out.
    wide = max(step, 1.0)
    center = step * (np.arange(new) + 0.5)
    first = np.maximum((center - reach * wide + 0.5).astype(np.int64), 0)
    end = np.minimum((center + reach * wide + 0.5).astype(np.int64), old)
    position = first + np.arange(max((end - first).max(), 1))[:, None]
    weights = np.where(position < end, kernel((position - center + 0.5) / wide), 0)
    return Taps(np.minimum(position, old - 1), weights / weights.sum(0), old)


def _cubic_of(a: float) -> Callable[[Any], Any]:
    def cubic(x: Any) -> Any:
        x = np.abs(x)
        near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return cubic


@op(cast=Cast.FP32)
def interpolate_(input: Array, axes):
    """Apply the Taps of `axes` along the trailing axes of input."""
    given = input
    for i, taps in enumerate(axes, -len(axes)):
        at, indices, weights = input.ndim + i, taps.indices, taps.weights
        if weights is None:
            input = np.take(input, index_on_device_of(input, indices[0]), at)
            continue
        factor = np.asarray(weights, input.dtype).reshape(*weights.shape, *(1,) * (-1 - i))
        input = (np.take(input, index_on_device_of(input, indices), at) * index_on_device_of(input, factor)).sum(at)
    return stored_like(given, input), Saved()


@interpolate_.backward
def interpolate_backward(dy, saved, needs, axes):
    return apply(interpolate_, dy, tuple([taps.transposed() for taps in axes]))

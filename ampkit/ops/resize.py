"""Interpolation: images, sequences and volumes in another size."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backends
from ..core.errors import ArgumentError, ShapeError
from ..core.op import Array, Saved, op
from ..core.policy import Cast
from ..core.replay import apply, plain
from ..core.tensor import Tensor
from .index import index_select, put_item
from .pool import adaptive_avg_pool2d

__all__ = ["interpolate"]

_LINEAR = {"linear": 3, "bilinear": 4, "trilinear": 5}  # the mode, and the axes that the input then has


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """input in another size, each pixel the nearest one, a mixture of its neighbours, or the mean of an area.

    input [N, C, L], [N, C, H, W] or [N, C, D, H, W] -> [N, C, *size], by size or by scale_factor, numbers for all axes
    or one each. mode: "nearest", "nearest-exact", "linear", "bilinear" or "trilinear" (by the number of axes), "area"
    (images). align_corners=True sets the outer pixels on each other. Mixtures are rounded once.
    Raises ArgumentError for other modes, for both or neither of size and scale_factor and for antialias=True,
    ShapeError for an input that does not fit the mode.
    """
    sizes, steps = _sizes(input, size, scale_factor, bool(recompute_scale_factor))
    if antialias:
        raise ArgumentError("interpolate", "antialias=False", "True")
    if align_corners is not None and mode not in _LINEAR:
        raise ArgumentError("interpolate", f"align_corners left out for mode {mode!r}", repr(align_corners))
    if mode in ("nearest", "nearest-exact"):
        for i, (length, step) in enumerate(zip(sizes, steps, strict=True)):
            places = np.floor((np.arange(length) + 0.5 * (mode == "nearest-exact")) * step).astype(np.int64)
            inside = backends.of(input.array).asarray(np.minimum(places, input.shape[i + 2] - 1))
            input = index_select(input, i + 2, Tensor(inside))
        return input
    if mode == "area" and input.ndim == 4:
        return adaptive_avg_pool2d(input, sizes)  # type: ignore[no-any-return]
    if _LINEAR.get(mode) != input.ndim:
        needs = "mode nearest, nearest-exact, linear for 3 axes, bilinear for 4, trilinear for 5, or area for 4"
        raise ArgumentError("interpolate", needs, f"{mode!r} for {input.ndim} axes")
    sides = zip(sizes, steps, input.shape[2:], strict=True)
    return interpolate_(input, tuple(_between(*side, bool(align_corners)) for side in sides))  # type: ignore[no-any-return]


def _sizes(input: Tensor, size: Any, scale: Any, recompute: bool) -> tuple[tuple[int, ...], tuple[float, ...]]:
    # Per axis, the new length, and how far apart its pixels lie in the old one.
    lengths = tuple(input.shape[2:])
    if not 1 <= len(lengths) <= 3:
        raise ShapeError("interpolate", "input [N, C, L], [N, C, H, W] or [N, C, D, H, W]", f"{tuple(input.shape)}")
    if (size is None) == (scale is None):
        raise ArgumentError("interpolate", "size or scale_factor", "neither" if size is None else "both")
    given = size if scale is None else scale
    each = tuple(given) if isinstance(given, (tuple, list)) else (given,) * len(lengths)
    if len(each) != len(lengths) or not all(n > 0 for n in each):
        raise ArgumentError("interpolate", f"a positive number, or {len(lengths)} of them", repr(given))
    sizes = each if scale is None else tuple(int(n * s) for n, s in zip(lengths, each, strict=True))
    if min(sizes) < 1 or not input.array.size:
        raise ShapeError("interpolate", "at least one pixel", f"{lengths} to {sizes}")
    if scale is None or recompute:
        return sizes, tuple(n / m for n, m in zip(lengths, sizes, strict=True))
    return sizes, tuple(1 / s for s in each)


def _between(length: int, step: float, old: int, corners: bool) -> tuple[Any, Any, Any]:
    # For each new pixel the old ones below and above it, and how far it lies from the lower one.
    place = np.arange(length, dtype=np.float64)
    place = place * ((old - 1) / max(length - 1, 1)) if corners else np.maximum((place + 0.5) * step - 0.5, 0)
    low = np.minimum(np.floor(place).astype(np.int64), old - 1)
    return low, np.minimum(low + 1, old - 1), place - low


@op(cast=Cast.KEEP)
def interpolate_(input: Array, axes):
    """Each trailing axis of input mixed from its elements at `low` and `high`: axes, a tuple of (low, high, share)."""
    out = input
    for i, (low, high, share) in enumerate(axes):
        at = i - len(axes)
        weight = _weight(share, at, input)
        out = np.take(out, low, at) * (1 - weight) + np.take(out, high, at) * weight
    return out, Saved(shape=input.shape)


@interpolate_.backward
def interpolate_backward(dy, saved, needs, axes):
    for i in range(len(axes) - 1, -1, -1):
        (low, high, share), at = axes[i], i - len(axes)
        weight, rank = _weight(share, at, dy), len(saved.shape)
        shape = (*dy.shape[: rank + at], saved.shape[at], *dy.shape[rank + at + 1 :])
        before = (slice(None),) * (rank + at)
        below = apply(put_item, dy * (1 - weight), (*before, low), shape)
        dy = below + apply(put_item, dy * weight, (*before, high), shape)
    return dy


def _weight(share: Any, at: int, like: Any) -> Any:
    return np.asarray(share, like.dtype, like=plain(like)).reshape(-1, *(1,) * (-1 - at))

"""Quantiles, and moments in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import backends
from ..core.dtypes import LOW, float32
from ..core.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ..core.tensor import Tensor
from .along import gather
from .arithmetic import lerp
from .axes import axis
from .convert import to
from .index import index_select
from .order import Found, _order, sort
from .reduce import mean, std, var
from .shape import flatten, movedim, reshape, squeeze

__all__ = ["median", "quantile", "std_mean", "var_mean"]


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle value in order, of an even number the lower one; along `dim` (values, indices). NaN wins.

    The gradient goes to the element that was picked. Raises ShapeError for a median of nothing.
    """
    if dim is None:
        return median(flatten(input), 0).values
    at, x = axis("median", dim, input.ndim), input.array
    if not input.ndim:
        return Found(reshape(input, ()), Tensor(np.zeros_like(x, np.int64)))
    if not x.shape[at]:
        raise ShapeError("median", "at least one element", f"shape {tuple(input.shape)}")
    order = np.take(_order(x, at, False), [(x.shape[at] - 1) // 2], at)
    lost = np.isnan(x) if x.dtype.kind not in "iub" else np.zeros_like(x, np.bool_)
    places = Tensor(np.where(lost.any(at, keepdims=True), lost.argmax(at, keepdims=True), order))
    values = gather(input, at, places)
    return Found(values, places) if keepdim else Found(squeeze(values, at), squeeze(places, at))


def quantile(
    input: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The value below which a share q of the elements along `dim` (None: of all) lies; q a number or a tensor [m].

    -> [...] or [m, ...]. Between two elements by interpolation: "linear", "lower", "higher", "nearest", "midpoint".
    In float32 for 16-bit tensors; NaN gives NaN. Raises DTypeError for integers, ShapeError for no elements, RangeError
    for q outside [0, 1].
    """
    if not input.is_floating_point():
        raise DTypeError("quantile", "a floating-point tensor", input.dtype.name, "cast it: x.float()")
    if input.dtype in LOW:
        return to(quantile(to(input, float32), q, dim, keepdim, interpolation=interpolation), input.dtype)
    shares, at = _shares(q), 0 if dim is None else axis("quantile", dim, input.ndim)
    flat = flatten(input) if dim is None else input
    if not flat.numel() or not flat.ndim:
        raise ShapeError("quantile", "at least one element", f"shape {tuple(input.shape)}")
    place, share = _between(shares * (flat.shape[at] - 1), interpolation)
    rows = movedim(sort(flat, at).values, at, 0)
    there = backends.of(input.array).asarray
    low, high = (Tensor(there(f(place).astype(np.int64))) for f in (np.floor, np.ceil))
    weight = Tensor(there(share.astype(input.dtype).reshape(-1, *(1,) * (rows.ndim - 1))))
    found = _or_nan(lerp(index_select(rows, 0, low), index_select(rows, 0, high), weight), rows)
    if keepdim:
        kept = (1,) * input.ndim if dim is None else (*input.shape[:at], 1, *input.shape[at + 1 :])
        found = reshape(found, len(shares), *kept)
    return found if isinstance(q, Tensor) and q.ndim else squeeze(found, 0)


def _shares(q: Any) -> Any:
    shares = np.atleast_1d(q.numpy(force=True) if isinstance(q, Tensor) else np.asarray(q)).astype(np.float64)
    if shares.ndim > 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise RangeError("quantile", "q from 0 to 1, a number or a vector", f"{shares.tolist()}")
    return shares


_ROUNDED = {"lower": np.floor, "higher": np.ceil, "nearest": np.round}


def _between(place: Any, interpolation: str) -> tuple[Any, Any]:
    # The places in order, and how far between two of them to go.
    if interpolation in _ROUNDED:
        return _ROUNDED[interpolation](place), np.zeros_like(place)
    if interpolation not in ("linear", "midpoint"):
        raise ArgumentError("quantile", "interpolation linear, lower, higher, nearest or midpoint", repr(interpolation))
    return place, place % 1 if interpolation == "linear" else np.where(place % 1, 0.5, 0.0)


def _or_nan(found: Tensor, rows: Tensor) -> Tensor:
    lost = np.isnan(rows.array[-1])  # sorted, NaN stands last
    return found if not lost.any() else found + Tensor(np.where(lost, math.nan, 0).astype(found.dtype))  # type: ignore[operator, no-any-return]


def var_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1
) -> tuple[Tensor, Tensor]:
    """`var` and `mean` over `dim`."""
    over = None if isinstance(dim, bool) else dim
    return var(input, dim, unbiased, keepdim, correction=correction), mean(input, over, keepdim)


def std_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1
) -> tuple[Tensor, Tensor]:
    """`std` and `mean` over `dim`."""
    over = None if isinstance(dim, bool) else dim
    return std(input, dim, unbiased, keepdim, correction=correction), mean(input, over, keepdim)

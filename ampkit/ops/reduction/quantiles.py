"""Quantiles, and moments in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import LOW, float32
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.tensor import Tensor

from ..indexing.gather import gather
from ..pointwise.arithmetic import add, lerp, mul, sub
from ..pointwise.conversion import to
from ..pointwise.selection import masked_fill
from ..shape.axes import axis
from ..shape.view import flatten, movedim, reshape, squeeze
from .reductions import mean, std, var
from .sorting import Found, _order, sort

__all__ = ["median", "nanquantile", "quantile", "std_mean", "var_mean"]


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle value in order, of an even number the lower one; along `dim` (values, indices). NaN wins.

    The gradient goes to the element that was selected. Raises ShapeError for a median of nothing.
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
    In float32 for 16-bit tensors; NaN gives NaN. By "linear" a tensor q has a gradient too. Raises DTypeError for
    integers, ShapeError for no elements, RangeError for q outside [0, 1].
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation)


def nanquantile(
    input: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """`quantile` of what is not NaN along `dim`; NaN of nothing.

    Raises DTypeError for integers, ShapeError for no elements, RangeError for q outside [0, 1].
    """
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation)


def _quantile(where: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str) -> Tensor:
    if not input.is_floating_point():
        raise DTypeError(where, "a floating-point tensor", input.dtype.name, "cast it: x.float()")
    if input.dtype in LOW:
        return to(_quantile(where, to(input, float32), q, dim, keepdim, interpolation), input.dtype)
    shares, at = _shares(where, q), 0 if dim is None else axis(where, dim, input.ndim)
    flat = flatten(input) if dim is None or not input.ndim else input
    if not flat.numel():
        raise ShapeError(where, "at least one element", f"shape {tuple(input.shape)}")
    rows = movedim(sort(flat, at).values, at, 0)  # NaN stands last
    column = (-1, *(1,) * (rows.ndim - 1))
    shares = backends.backend_of(input.array).asarray(shares.reshape(column))
    slope = reshape(q, column) if isinstance(q, Tensor) and q.requires_grad and interpolation == "linear" else None
    found = _between_neighbours(rows, shares, slope, interpolation, where == "nanquantile")
    if keepdim:
        found = reshape(found, len(shares), *(1 if dim is None or i == at else n for i, n in enumerate(input.shape)))
    return found if isinstance(q, Tensor) and q.ndim else squeeze(found, 0)


def _between_neighbours(rows: Tensor, shares: Any, q: Tensor | None, interpolation: str, skips: bool) -> Tensor:
    # Of rows in order [n, ...], shares [m, 1 ...] -> [m, ...]. q: shares as a tensor that gets a gradient.
    x, last = rows.array, len(rows) - 1
    count = (x == x).sum(0, keepdims=True)
    lost = (count <= last) & (not skips)  # the answer is NaN, which the last row holds
    steps = np.maximum(count - 1, 0)
    place, share = _between(shares * steps, interpolation)
    low, high = (Tensor(np.where(lost, last, f(place)).astype(np.int64)) for f in (np.floor, np.ceil))
    weight = Tensor(np.where(lost, 0, share).astype(x.dtype))
    if q is not None:  # the weight itself comes from shares in float64, its slope from q
        moved = mul(masked_fill(to(q, x.dtype), Tensor(lost), 0), Tensor(steps.astype(x.dtype)))
        weight = add(weight, sub(moved, moved.detach()))
    return lerp(gather(rows, 0, low), gather(rows, 0, high), weight)


def _shares(where: str, q: Any) -> Any:
    shares = np.atleast_1d(q.numpy(force=True) if isinstance(q, Tensor) else np.asarray(q)).astype(np.float64)
    if shares.ndim > 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise RangeError(where, "q from 0 to 1, a number or a vector", f"{shares.tolist()}")
    return shares


_ROUNDED = {"lower": np.floor, "higher": np.ceil, "nearest": np.round}


def _between(place: Any, interpolation: str) -> tuple[Any, Any]:
    # The places in order, and how far between two of them to go.
    if interpolation in _ROUNDED:
        return _ROUNDED[interpolation](place), np.zeros_like(place)
    if interpolation not in ("linear", "midpoint"):
        raise ArgumentError("quantile", "interpolation linear, lower, higher, nearest or midpoint", repr(interpolation))
    return place, place % 1 if interpolation == "linear" else np.where(place % 1, 0.5, 0.0)


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

"""Order statistics along an axis: median, quantiles, kthvalue, mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import LOW, float32
from ampkit.base.errors import ArgumentError, RangeError, ShapeError
from ampkit.core.autograd.grad_mode import is_grad_enabled
from ampkit.core.op import Array, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_floating, normalize_axis
from ..indexing.gather_scatter import gather
from ..pointwise.arithmetic import add, lerp, mul, sub
from ..pointwise.conversion import to
from ..pointwise.selection import masked_fill
from ..shape.view import flatten, movedim, reshape, squeeze
from .cumulative import cumulative_extremum
from .reductions import amax
from .sorting import ValuesIndices, sort, stable_order

__all__ = ["kthvalue", "median", "mode", "nanmedian", "nanquantile", "quantile"]


def _gather_found(input: Tensor, at: int, found: Tensor, keepdim: bool) -> ValuesIndices:
    values = gather(input, at, found)
    return ValuesIndices(values, found) if keepdim else ValuesIndices(squeeze(values, at), squeeze(found, at))


def _zero_dimensional(input: Tensor) -> ValuesIndices:
    return ValuesIndices(reshape(input, ()), Tensor(np.zeros_like(input.array, np.int64)))


def kthvalue(input: Tensor, k: int, dim: int | None = None, keepdim: bool = False) -> ValuesIndices:
    """(values, indices): the k-th smallest along `dim` (None: the last), counted from 1. NaN is largest.

    Raises RangeError for a k outside [1, n].
    """
    at = normalize_axis("kthvalue", -1 if dim is None else dim, input.ndim)
    length = input.shape[at] if input.ndim else 1
    if not 1 <= k <= length:
        raise RangeError("kthvalue", f"k from 1 to {length}, the length of dim {dim}", f"{k}")
    if not input.ndim:
        return _zero_dimensional(input)
    return _gather_found(input, at, place_in_order(input.detach(), at, k), keepdim)


@op(cast=Cast.KEEP)
def place_in_order(input: Array, dim, k, skip_nan=False):
    """The index along `dim`, from 0 on, of the k-th smallest element, k = None: of the `median`. int64 [.., 1, ..]."""
    order = stable_order(input, dim, False)
    if k is not None:
        return np.take(order, [k - 1], dim)
    length, numbers = input.shape[dim], (input == input).sum(dim, keepdims=True)
    position = np.maximum(numbers - 1, 0) // 2
    if not skip_nan:  # NaNs sort last, the first of them first
        position = np.where(numbers < length, numbers, position)
    return np.take_along_axis(order, position, dim)


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """(values, indices): the most frequent value along `dim`, of ties the smallest, and its last index.

    Raises ShapeError for an empty axis.
    """
    at = normalize_axis("mode", dim, input.ndim)
    if not input.ndim:
        return _zero_dimensional(input)
    if not input.shape[at]:
        raise ShapeError("mode", "at least one element", f"shape {tuple(input.shape)}")
    return _gather_found(input, at, place_of_mode(input.detach(), at), keepdim)


@op(cast=Cast.KEEP)
def place_of_mode(input: Array, dim):
    """The index along `dim`, from 0 on, of the `mode`: int64 [.., 1, ..]."""
    order = np.moveaxis(stable_order(input, dim, False), dim, -1)
    row = np.take_along_axis(np.moveaxis(input, dim, -1), order, -1)
    begins = np.concatenate([np.ones_like(row[..., :1], np.bool_), row[..., 1:] != row[..., :-1]], -1)
    line = np.broadcast_to(np.arange(row.shape[-1], like=input), row.shape)
    longest = np.argmax(
        line - cumulative_extremum(np.greater_equal, np.where(begins, line, 0), -1)[0], -1, keepdims=True
    )
    return np.moveaxis(np.take_along_axis(order, longest, -1), -1, dim)


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median, of an even number of elements the lower one; along `dim` (values, indices). NaN propagates.

    The gradient goes to the selected element; without `dim` to all that equal it, in equal parts. Raises ShapeError for
    no elements.
    """
    return _median("median", input, dim, keepdim, skip_nan=False)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The `median` of the elements that are not NaN; along `dim` (values, indices)."""
    return _median("nanmedian", input, dim, keepdim, skip_nan=True)


def _median(where: str, input: Tensor, dim: int | None, keepdim: bool, skip_nan: bool) -> Any:
    if dim is None:
        found = _median(where, flatten(input.detach()), 0, False, skip_nan).values
        if not (input.requires_grad and is_grad_enabled()):
            return found
        same = (input == found) | ((found != found) & (input != input))
        return amax(masked_fill(input, ~same, -math.inf))  # the gradient of which is what ties have
    at = normalize_axis(where, dim, input.ndim)
    if not input.ndim:
        return _zero_dimensional(input)
    if not input.shape[at]:
        raise ShapeError(where, "at least one element", f"shape {tuple(input.shape)}")
    return _gather_found(input, at, place_in_order(input.detach(), at, None, skip_nan), keepdim)


def quantile(
    input: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The q-quantile of the elements along `dim` (None: of all); q a number or a tensor [m] -> [...] or [m, ...].

    Between two elements by interpolation: "linear", "lower", "higher", "nearest", "midpoint".
    In float32 for 16-bit tensors; NaN propagates. With "linear" a tensor q gets a gradient too. Raises DTypeError for
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
    """`quantile` of the elements that are not NaN along `dim`; NaN if there are none.

    Raises DTypeError for integers, ShapeError for no elements, RangeError for q outside [0, 1].
    """
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation)


def _quantile(where: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str) -> Tensor:
    check_floating(where, input)
    if input.array.dtype in LOW:
        return to(_quantile(where, to(input, float32), q, dim, keepdim, interpolation), input.dtype)
    shares, at = _parse_q(where, q), 0 if dim is None else normalize_axis(where, dim, input.ndim)
    flat = flatten(input) if dim is None or not input.ndim else input
    if not flat.numel():
        raise ShapeError(where, "at least one element", f"shape {tuple(input.shape)}")
    rows = movedim(sort(flat, at).values, at, 0)  # NaN sorts last
    column = (-1, *(1,) * (rows.ndim - 1))
    shares = backends.backend_of(input.array).asarray(shares.reshape(column))
    q_column = reshape(q, column) if isinstance(q, Tensor) and q.requires_grad and interpolation == "linear" else None
    found = _interpolate_rows(rows, shares, q_column, interpolation, where == "nanquantile")
    if keepdim:
        found = reshape(found, len(shares), *(1 if dim is None or i == at else n for i, n in enumerate(input.shape)))
    return found if isinstance(q, Tensor) and q.ndim else squeeze(found, 0)


def _interpolate_rows(rows: Tensor, shares: Any, q: Tensor | None, interpolation: str, skips: bool) -> Tensor:
    # Sorted rows [n, ...], shares [m, 1 ...] -> [m, ...]. q: shares as a tensor that requires grad, or None.
    x, last = rows.array, len(rows) - 1
    count = (x == x).sum(0, keepdims=True)
    lost = (count <= last) & (not skips)  # the result is NaN, which is in the last row
    steps = np.maximum(count - 1, 0)
    position, share = _interpolation(shares * steps, interpolation)
    low, high = (Tensor(np.where(lost, last, f(position)).astype(np.int64)) for f in (np.floor, np.ceil))
    weight = Tensor(np.where(lost, 0, share).astype(x.dtype))
    if q is not None:  # the weight's value comes from shares in float64, its gradient from q
        moved = mul(masked_fill(to(q, x.dtype), Tensor(lost), 0), Tensor(steps.astype(x.dtype)))
        weight = add(weight, sub(moved, moved.detach()))
    return lerp(gather(rows, 0, low), gather(rows, 0, high), weight)


def _parse_q(where: str, q: Any) -> Any:
    shares = np.atleast_1d(q.numpy(force=True) if isinstance(q, Tensor) else np.asarray(q)).astype(np.float64)
    if shares.ndim > 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise RangeError(where, "q from 0 to 1, a number or a vector", f"{shares.tolist()}")
    return shares


_ROUNDED: dict[str, Any] = {"lower": np.floor, "higher": np.ceil, "nearest": np.round}


def _interpolation(position: Any, interpolation: str) -> tuple[Any, Any]:
    # The fractional position in sorted order, and the weight of the upper neighbour.
    if interpolation in _ROUNDED:
        return _ROUNDED[interpolation](position), np.zeros_like(position)
    if interpolation not in ("linear", "midpoint"):
        raise ArgumentError("quantile", "interpolation linear, lower, higher, nearest or midpoint", repr(interpolation))
    return position, position % 1 if interpolation == "linear" else np.where(position % 1, 0.5, 0.0)

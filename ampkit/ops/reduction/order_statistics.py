"""Ranks along an axis: running extremes, the k-th in order, the most frequent; and sums that leave NaN out."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import LOW, float32
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..indexing.gather import gather, places
from ..indexing.subscript import put_item, wide
from ..pointwise.arithmetic import div
from ..pointwise.comparison import isnan, logical_not
from ..pointwise.conversion import to
from ..pointwise.selection import masked_fill
from ..shape.axes import axis, count
from ..shape.view import flatten, squeeze
from .quantiles import median
from .reductions import amax, amin, sum
from .sorting import Found, _order, sort

__all__ = ["aminmax", "cummax", "cummin", "histc", "kthvalue", "mode", "msort", "nanmean", "nanmedian", "nansum"]


class Ends(NamedTuple):
    """The smallest and the largest value."""

    min: Tensor
    max: Tensor


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Ends:
    """(min, max) over `dim`, or of all elements: `amin` and `amax`."""
    return Ends(amin(input, dim, keepdim), amax(input, dim, keepdim))


# running extremes


def cummax(input: Tensor, dim: int) -> Found:
    """(values, indices): the largest so far along `dim`, of equal ones the last. NaN stays once it is met."""
    return Found(*cummax_(input, dim))


def cummin(input: Tensor, dim: int) -> Found:
    """(values, indices): the smallest so far along `dim`, of equal ones the last. NaN stays once it is met."""
    return Found(*cummin_(input, dim))


@op(cast=Cast.KEEP)
def cummax_(input: Array, dim):
    """`cummax`."""
    found = _running(np.greater_equal, input, dim)
    return found, Saved(at=found[1], shape=input.shape)


@op(cast=Cast.KEEP)
def cummin_(input: Array, dim):
    """`cummin`."""
    found = _running(np.less_equal, input, dim)
    return found, Saved(at=found[1], shape=input.shape)


def _running(wins: Any, values: Any, dim: int) -> tuple[Any, Any]:
    """The winners of what stands up to each place, and where they stand; in log n steps, for CuPy has no such scan."""
    if not values.ndim:
        return values, np.zeros_like(values, np.int64)
    at, n, step = dim % values.ndim, values.shape[dim], 1
    line = np.arange(n, like=values).reshape((-1,) + (1,) * (values.ndim - 1 - at))
    places = np.broadcast_to(line, values.shape).astype(np.int64)
    while step < n:
        late, early, head = (
            (slice(None),) * at + (part,) for part in (slice(step, n), slice(0, n - step), slice(step))
        )
        new, old = values[late], values[early]
        stays = (new != new) | ((old == old) & wins(new, old))
        values, places = (
            np.concatenate([held[head], np.where(stays, held[late], held[early])], at) for held in (values, places)
        )
        step *= 2
    return values, places


def _running_backward(dy, saved, needs, dim):
    return apply(put_item, wide(dy[0]), places(saved.at, dim), saved.shape) if saved.shape else dy[0]


for _op in (cummax_, cummin_):
    _op.check(lambda input, dim, name=_op.name: axis(name, dim, input.ndim))
    _op.backward(_running_backward)


# in order


def _picked(input: Tensor, at: int, there: Any, keepdim: bool) -> Found:
    found = Tensor(there)
    values = gather(input, at, found)
    return Found(values, found) if keepdim else Found(squeeze(values, at), squeeze(found, at))


def kthvalue(input: Tensor, k: int, dim: int | None = None, keepdim: bool = False) -> Found:
    """(values, indices): the k-th smallest along `dim` (None: the last), counted from 1. NaN is largest.

    Raises RangeError for a k that is not there.
    """
    at = axis("kthvalue", -1 if dim is None else dim, input.ndim)
    length = input.shape[at] if input.ndim else 1
    if not 1 <= k <= length:
        raise RangeError("kthvalue", f"k from 1 to {length}, the length of dim {dim}", f"{k}")
    if not input.ndim:
        return Found(input, Tensor(np.zeros_like(input.array, np.int64)))
    return _picked(input, at, np.take(_order(input.array, at, False), [k - 1], at), keepdim)


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Found:
    """(values, indices): the most frequent value along `dim`, of equally frequent ones the smallest.

    Where it stands last. Raises ShapeError for an empty axis.
    """
    at, x = axis("mode", dim, input.ndim), input.array
    if not input.ndim:
        return Found(input, Tensor(np.zeros_like(x, np.int64)))
    if not x.shape[at]:
        raise ShapeError("mode", "at least one element", f"shape {tuple(input.shape)}")
    order = np.moveaxis(_order(x, at, False), at, -1)
    row = np.take_along_axis(np.moveaxis(x, at, -1), order, -1)
    begins = np.concatenate([np.ones_like(row[..., :1], np.bool_), row[..., 1:] != row[..., :-1]], -1)
    line = np.broadcast_to(np.arange(row.shape[-1], like=x), row.shape)
    longest = np.argmax(line - _running(np.greater_equal, np.where(begins, line, 0), -1)[0], -1, keepdims=True)
    return _picked(input, at, np.moveaxis(np.take_along_axis(order, longest, -1), -1, at), keepdim)


def msort(input: Tensor) -> Tensor:
    """The values in rising order along the first axis."""
    return sort(input, 0).values


# without NaN


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """`sum`, of NaN as 0."""
    return sum(masked_fill(input, isnan(input), 0), dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over `dim` of what is not NaN; NaN of nothing. In float32 for 16-bit tensors, rounded once.

    Raises DTypeError for integers, also as `dtype`.
    """
    given = to(input, dtype=dtype) if dtype is not None else input
    for t in (input, given):
        if not t.is_floating_point():
            raise DTypeError("nanmean", "a floating-point tensor", t.dtype.name, "cast it: x.float()")
    full = to(given, float32) if given.dtype in LOW else given
    count = to(sum(logical_not(isnan(full)), dim, keepdim), full.dtype)
    return to(div(nansum(full, dim, keepdim), count), given.dtype)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle value in order of what is not NaN, of an even number the lower one; along `dim` (values, indices)."""
    if dim is None:
        return nanmedian(flatten(input), 0).values
    at, x = axis("nanmedian", dim, input.ndim), input.array
    if not input.ndim or not x.shape[at]:
        return median(input, dim, keepdim)
    here = (x == x).sum(at, keepdims=True)
    return _picked(input, at, np.take_along_axis(_order(x, at, False), np.maximum(here - 1, 0) // 2, at), keepdim)


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` equal parts of [min, max]: [bins].

    Where min = max, as by default, of what input spans. NaN and what lies outside count nowhere; max
    counts in the last part. In input's dtype.
    Raises DTypeError for integers, ArgumentError for bins below 1 and min above max.
    """
    if not input.is_floating_point():
        raise DTypeError("histc", "a floating-point tensor", input.dtype.name, "cast it: x.float()")
    count("histc", "bins", bins)
    if not -math.inf < min <= max < math.inf:
        raise ArgumentError("histc", "finite min up to max", f"min={min}, max={max}")
    if bins < 1 or not min <= max:
        raise ArgumentError("histc", "bins from 1 and min up to max", f"bins={bins}, min={min}, max={max}")
    x = input.array.reshape(-1)
    x = x.astype(float32) if x.dtype in LOW else x
    low, high = _span(x) if min == max and x.size else (min, max + (min == max))
    inside = (x >= low) & (x <= high)
    at = np.where(inside, np.minimum(np.floor((x - low) / (high - low) * bins), bins - 1), bins).astype(np.int64)
    return Tensor(np.bincount(at, minlength=bins + 1)[:bins].astype(input.dtype))


def _span(x: Any) -> tuple[Any, Any]:
    # The extremes, where they are, one below and one above where they are equal.
    low, high = x.min(), x.max()
    return np.where(low == high, low - 1, low), np.where(low == high, high + 1, high)

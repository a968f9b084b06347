"""Reductions: sum, mean, prod, extremes, any and all, nansum.

`dim` is one axis, several, or all (None); `keepdim=True` keeps the reduced axes with length 1. 16-bit tensors are
reduced in float32, products in float64, and rounded once; integers are summed in int64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import float64, int64, is_float
from ampkit.base.errors import ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_mean, blocked_sum
from ampkit.core.casts import cast
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_floating, normalize_axes, normalize_axis
from ..named import named
from ..pointwise.arithmetic import div
from ..pointwise.comparison import isnan, logical_not
from ..pointwise.conversion import to
from ..pointwise.selection import masked_fill

__all__ = ["all", "amax", "amin", "aminmax", "any", "count_nonzero", "mean", "nanmean", "nansum", "prod", "sum"]


def check_dim(name: str, some: bool = False) -> Any:
    # A check that input has the axes `dim` and, with `some`, at least one element to reduce.
    def check(input: Any, dim: Any = None, *args: Any, **params: Any) -> None:
        if dim is not None and not (type(dim) is int and -input.ndim <= dim < input.ndim):
            normalize_axes(name, dim, input.ndim)
        if some and not input.size and not count_reduced(input.shape, dim):
            raise ShapeError(name, "at least one element", f"shape {tuple(input.shape)}")

    return check


def numpy_axis(dim: Any, ndim: int) -> Any:
    """Convert a checked `dim` to NumPy's `axis`: None, one axis, or a tuple."""
    return dim if dim is None or (type(dim) is int and ndim) else normalize_axes("", dim, ndim)


def expand_reduced(dy: Any, shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
    """Broadcast dy, the gradient of a reduction over `dim`, to the input's `shape`."""
    return np.broadcast_to(with_reduced(dy, shape, dim, keepdim), shape)


def with_reduced(dy: Any, shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
    """dy, the gradient of a reduction over `dim` of an input of `shape`, with the reduced axes, of length 1."""
    if keepdim:
        return dy
    reduced = normalize_axes("", dim, len(shape))
    return dy.reshape(tuple([1 if i in reduced else n for i, n in enumerate(shape)]))


def count_reduced(shape: tuple[int, ...], dim: Any) -> int:
    return math.prod([shape[i] for i in normalize_axes("", dim, len(shape))])


@op(cast=Cast.FP32)
def sum(input: Array, dim=None, keepdim=False, *, dtype=None):
    """The sum over `dim`. In float32; integers and bool in int64; dtype= casts the input first, and is the result's.

    Raises RangeError for an axis that input does not have.
    """
    return blocked_sum(input, numpy_axis(dim, input.ndim), keepdim), Saved(shape=input.shape)


@sum.backward
def sum_backward(dy, saved, needs, dim, keepdim, dtype):
    return expand_reduced(dy, saved.shape, dim, keepdim)


@op(cast=Cast.KEEP, integers="float")
def mean(input: Array, dim=None, keepdim=False, *, dtype=None):
    """The mean over `dim`; integers give float32.

    Raises RangeError for an axis that input does not have, ShapeError for no elements, DTypeError for an integer dtype.
    """
    count = count_reduced(input.shape, dim)
    return blocked_mean(input, numpy_axis(dim, input.ndim), keepdim, count), Saved(shape=input.shape)


@mean.backward
def mean_backward(dy, saved, needs, dim, keepdim, dtype):
    return expand_reduced(dy / count_reduced(saved.shape, dim), saved.shape, dim, keepdim)


def _extreme(name: str, function: Any, meaning: str) -> Any:
    @op(cast=Cast.KEEP)
    @named(name, f"The {meaning} over `dim`; ties share the gradient evenly. NaN propagates.")
    def made(input: Array, dim=None, keepdim=False):
        out = function(input, numpy_axis(dim, input.ndim), keepdims=keepdim)
        return out, Saved(input=input, out=out)

    made.check(check_dim(name, some=True))
    made.backward(_extreme_backward)
    return made


def _extreme_backward(dy, saved, needs, dim, keepdim):
    x, out = plain(saved.input), plain(saved.out)
    out = expand_reduced(out, x.shape, dim, keepdim)
    hit = (x == out) | ((x != x) & (out != out))
    count = hit.sum(numpy_axis(dim, x.ndim), keepdims=bool(keepdim)).astype(dy.dtype)
    return expand_reduced(dy / count, x.shape, dim, keepdim) * hit.astype(dy.dtype)


amax = _extreme("amax", np.max, "largest value")
amin = _extreme("amin", np.min, "smallest value")


def _logical(name: str, function: Any, which: str) -> Any:
    @op(cast=Cast.KEEP, moves=True)
    @named(name, f"Whether {which} true (not 0), as bool; of uint8 in uint8. dim=() reduces no axis.")
    def made(input: Array, dim=None, keepdim=False):
        axis = () if isinstance(dim, (tuple, list)) and not dim else numpy_axis(dim, input.ndim)
        found = function(input != 0, axis, keepdims=keepdim)
        return found.astype(np.uint8) if input.dtype == np.uint8 else found

    return made


any = _logical("any", np.any, "any element over `dim` is")
all = _logical("all", np.all, "all elements over `dim` are")


@op(cast=Cast.KEEP, moves=True)
def count_nonzero(input: Array, dim=None):
    """How many elements over `dim` are not 0, as int64."""
    return (input != 0).sum(numpy_axis(dim, input.ndim))


mean.check(check_dim("mean", some=True))

for _op in (sum, any, all, count_nonzero):
    _op.check(check_dim(_op.name))


@op(cast=Cast.FP32)
def prod(input: Array, dim=None, keepdim=False, *, dtype=None):
    """The product over one `dim`, or of all elements. In float64, rounded once; integers in int64, or in `dtype`.

    The gradient is exact also with zeros. Raises RangeError for an axis that input does not have.
    """
    wide = float64 if is_float(input.dtype) else int64  # in float32, factors would over- and underflow on the way
    out = np.prod(input, numpy_axis(dim, input.ndim), wide, keepdims=keepdim)
    return out.astype(input.dtype if wide == float64 else wide), Saved(input=input)


@prod.check
def prod_check(input, dim, keepdim, dtype):
    if dim is not None:
        normalize_axis("prod", dim, input.ndim)


@prod.backward
def prod_backward(dy, saved, needs, dim, keepdim, dtype):
    x = saved.input
    if not x.ndim:
        return dy
    flat = cast(x.reshape(-1) if dim is None else x, float64)
    at = 0 if dim is None else normalize_axis("prod", dim, flat.ndim)
    others = exclusive_cumprod(flat, at) * np.flip(exclusive_cumprod(np.flip(flat, at), at), at)
    return cast(expand_reduced(cast(dy, float64), x.shape, dim, keepdim) * others.reshape(x.shape), dy.dtype)


def exclusive_cumprod(x: Any, axis: int) -> Any:
    # The product of the elements before each one along `axis`: 1, a, ab, ...
    index = (slice(None),) * axis
    one = np.ones_like(plain(x)[(*index, slice(0, 1))])
    return np.concatenate([one, np.cumprod(x[(*index, slice(0, -1))], axis)], axis)


class MinMax(NamedTuple):
    """The smallest and the largest value."""

    min: Tensor
    max: Tensor


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """(min, max) over `dim`, or of all elements: `amin` and `amax`."""
    return MinMax(amin(input, dim, keepdim), amax(input, dim, keepdim))


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """`sum` with NaN as 0."""
    return sum(masked_fill(input, isnan(input), 0), dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over `dim` of the elements that are not NaN; NaN if there are none.

    In float64, rounded once. Raises DTypeError for integers, also as `dtype`.
    """
    cast = to(input, dtype=dtype) if dtype is not None else input
    check_floating("nanmean", input)
    check_floating("nanmean", cast)
    full = to(cast, float64)  # where no sum of float32 overflows
    count = to(sum(logical_not(isnan(full)), dim, keepdim), full.dtype)
    return to(div(nansum(full, dim, keepdim), count), cast.dtype)

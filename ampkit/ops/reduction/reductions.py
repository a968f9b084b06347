"""Reductions: sums, extremes, variances and questions over axes.

`dim` is one axis, several, or all (None); `keepdim=True` keeps the reduced axes with length 1. 16-bit tensors are
reduced in float32 and rounded once; integers are summed in int64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..shape.axes import axes

__all__ = [
    "all", "amax", "amin", "any", "count_nonzero", "mean", "std", "sum", "var",
]  # fmt: skip


def _check_dim(name: str, some: bool = False) -> Any:
    # A check that input has the axes `dim` and, with `some`, that there is something to reduce.
    def check(input: Any, dim: Any = None, *args: Any, **params: Any) -> None:
        if dim is not None and not (type(dim) is int and -input.ndim <= dim < input.ndim):
            axes(name, dim, input.ndim)
        if some and not input.size and not _count(input.shape, dim):
            raise ShapeError(name, "at least one element", f"shape {tuple(input.shape)}")

    return check


def over(dim: Any, ndim: int) -> Any:
    """`dim`, already checked, as NumPy takes it: None, one axis, or a tuple."""
    return dim if dim is None or (type(dim) is int and ndim) else axes("", dim, ndim)


def spread(dy: Any, shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
    """The gradient of a reduction over `dim`, one number per result, at every element of the input's `shape`."""
    if not keepdim:
        gone = axes("", dim, len(shape))
        dy = dy.reshape(tuple([1 if i in gone else n for i, n in enumerate(shape)]))
    return np.broadcast_to(dy, shape)


def _count(shape: tuple[int, ...], dim: Any) -> int:
    return math.prod([shape[i] for i in axes("", dim, len(shape))])


def _sum(x: Any, dim: Any, keepdim: bool) -> Any:
    return blocked_sum(x, over(dim, x.ndim), keepdim)


@op(cast=Cast.FP32)
def sum(input: Array, dim=None, keepdim=False, *, dtype=None):
    """The sum over `dim`. In float32; integers and bool in int64; dtype= casts the input first, and is the answer's.

    Raises RangeError for an axis that input does not have.
    """
    return _sum(input, dim, keepdim), Saved(shape=input.shape)


@sum.backward
def sum_backward(dy, saved, needs, dim, keepdim, dtype):
    return spread(dy, saved.shape, dim, keepdim)


@op(cast=Cast.KEEP, integers="float")
def mean(input: Array, dim=None, keepdim=False, *, dtype=None):
    """The mean over `dim`; integers give float32.

    Raises RangeError for an axis that input does not have, ShapeError for a mean of nothing, DTypeError for an integer
    `dtype`.
    """
    return _sum(input, dim, keepdim) / _count(input.shape, dim), Saved(shape=input.shape)


@mean.backward
def mean_backward(dy, saved, needs, dim, keepdim, dtype):
    return spread(dy / _count(saved.shape, dim), saved.shape, dim, keepdim)


# extremes


def _extreme(name: str, function: Any, meaning: str) -> Any:
    def reference(input: Array, dim=None, keepdim=False):
        out = function(input, over(dim, input.ndim), keepdims=keepdim)
        return out, Saved(input=input, out=out)

    reference.__name__ = reference.__qualname__ = name
    reference.__doc__ = f"The {meaning} over `dim`; equal ones share the gradient evenly. NaN wins."
    made = op(cast=Cast.KEEP)(reference)
    made.check(_check_dim(name, some=True))
    made.backward(_extreme_backward)
    return made


def _extreme_backward(dy, saved, needs, dim, keepdim):
    x, out = plain(saved.input), plain(saved.out)
    out = spread(out, x.shape, dim, keepdim)
    hit = (x == out) | ((x != x) & (out != out))
    count = hit.sum(over(dim, x.ndim), keepdims=keepdim).astype(dy.dtype)
    return spread(dy / count, x.shape, dim, keepdim) * hit.astype(dy.dtype)


amax = _extreme("amax", np.max, "largest value")
amin = _extreme("amin", np.min, "smallest value")


# variance


def var(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1
) -> Tensor:
    """The variance over `dim`: the sum of squared distances to the mean, over n - correction.

    unbiased=False is correction=0, also in the place of `dim`: var(x, False). In two passes, so a large mean costs no
    accuracy. NaN for n <= correction. Raises RangeError for an axis that input does not have.
    """
    return var_(input, *_which(dim, unbiased, keepdim, correction))


def std(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1
) -> Tensor:
    """The standard deviation over `dim`, the square root of `var`; where it is 0 the gradient is 0."""
    return std_(input, *_which(dim, unbiased, keepdim, correction))


def _which(dim: Any, unbiased: Any, keepdim: bool, correction: Any) -> tuple[Any, bool, float]:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return dim, keepdim, int(unbiased) if unbiased is not None else 1 if correction is None else correction


@op(cast=Cast.KEEP, integers="refuse")
def var_(input: Array, dim=None, keepdim=False, correction: float | None = 1):
    """The variance over `dim`."""
    return _variance(input, dim, keepdim, correction), Saved(input=input)


@var_.backward
def var_backward(dy, saved, needs, dim, keepdim, correction):
    return _variance_slope(dy, saved.input, dim, keepdim, correction)


@op(cast=Cast.KEEP, integers="refuse")
def std_(input: Array, dim=None, keepdim=False, correction: float | None = 1):
    """The square root of the variance over `dim`."""
    out = np.sqrt(_variance(input, dim, keepdim, correction))
    return out, Saved(input=input, out=out)


@std_.backward
def std_backward(dy, saved, needs, dim, keepdim, correction):
    flat = plain(saved.out) == 0
    slope = np.where(flat, 0, dy / np.where(flat, 1, 2 * saved.out))
    return _variance_slope(slope, saved.input, dim, keepdim, correction)


def _centred(x: Any, dim: Any) -> Any:
    count = max(_count(x.shape, dim), 1)  # of no elements, as NumPy warns of their mean
    return x - _sum(x, dim, True) / count


def _variance(x: Any, dim: Any, keepdim: bool, correction: float) -> Any:
    off, free = _centred(x, dim), _count(x.shape, dim) - correction
    total = _sum(off * off, dim, keepdim)
    return total / free if free > 0 else total * math.nan


def _variance_slope(dy: Any, x: Any, dim: Any, keepdim: bool, correction: float) -> Any:
    free = _count(x.shape, dim) - correction
    return spread(dy * (2 / free if free > 0 else math.nan), x.shape, dim, keepdim) * _centred(x, dim)


# questions


@op(cast=Cast.KEEP, moves=True)
def any(input: Array, dim=None, keepdim=False):
    """Whether any element over `dim` is true (not 0), as bool; of uint8 in uint8. dim=() is over no axis."""
    return _answered(np.any(input != 0, _asked(dim, input.ndim), keepdims=keepdim), input)


@op(cast=Cast.KEEP, moves=True)
def all(input: Array, dim=None, keepdim=False):
    """Whether all elements over `dim` are true (not 0), as bool; of uint8 in uint8. dim=() is over no axis."""
    return _answered(np.all(input != 0, _asked(dim, input.ndim), keepdims=keepdim), input)


def _asked(dim: Any, ndim: int) -> Any:
    return () if isinstance(dim, (tuple, list)) and not dim else over(dim, ndim)


def _answered(found: Any, input: Any) -> Any:
    return found.astype(np.uint8) if input.dtype == np.uint8 else found


@op(cast=Cast.KEEP, moves=True)
def count_nonzero(input: Array, dim=None):
    """How many elements over `dim` are not 0, as int64."""
    return (input != 0).sum(over(dim, input.ndim))


mean.check(_check_dim("mean", some=True))
for _op in (sum, var_, std_, any, all, count_nonzero):
    _op.check(_check_dim(_op.name))

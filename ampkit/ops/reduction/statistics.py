"""Variance, standard deviation, covariance and correlation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.dtypes import DType, accumulator, default, float32, float64, promote
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.base.formats import need_arithmetic
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import add_reduce, blocked_mean, blocked_sum
from ampkit.core.casts import cast
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast, autocast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_values
from ..linalg.matmul import matmul
from ..pointwise.arithmetic import div, mul, sub
from ..pointwise.conversion import to
from ..pointwise.selection import clamp
from ..shape.view import reshape, squeeze, transpose
from .reductions import check_dim, count_reduced, expand_reduced, mean, numpy_axis, sum
from .squares import is_out_of_range, power_of_two

__all__ = ["corrcoef", "cov", "std", "std_mean", "var", "var_mean"]


def var(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1
) -> Tensor:
    """The variance over `dim`: the sum of squared deviations from the mean, over n - correction.

    unbiased=False is correction=0, also as second argument: var(x, False). In two passes, so a large mean costs no
    accuracy. NaN for n <= correction. Raises RangeError for an axis that input does not have.
    """
    return var_(input, *_parse_correction(dim, unbiased, keepdim, correction))


def std(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1
) -> Tensor:
    """The standard deviation over `dim`, the square root of `var`; where it is 0 the gradient is 0."""
    return std_(input, *_parse_correction(dim, unbiased, keepdim, correction))


def _parse_correction(dim: Any, unbiased: Any, keepdim: bool, correction: Any) -> tuple[Any, bool, float]:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return dim, keepdim, int(unbiased) if unbiased is not None else 1 if correction is None else correction


@op(cast=Cast.KEEP, integers="refuse")
def var_(input: Array, dim=None, keepdim=False, correction: float = 1):
    """The variance over `dim`."""
    variance, scale = _variance(input, dim, keepdim, correction)
    return cast(variance if scale is None else variance * scale * scale, input.dtype), Saved(input=input)


@var_.backward
def var_backward(dy, saved, needs, dim, keepdim, correction):
    x = saved.input
    apart = expand_reduced(dy * _share(count_reduced(x.shape, dim), correction, 2), x.shape, dim, keepdim) * _centered(
        x, dim
    )
    return cast(apart, dy.dtype)


@op(cast=Cast.KEEP, integers="refuse")
def std_(input: Array, dim=None, keepdim=False, correction: float = 1):
    """The square root of the variance over `dim`."""
    variance, scale = _variance(input, dim, keepdim, correction)
    out = cast(np.sqrt(variance) if scale is None else np.sqrt(variance) * scale, input.dtype)
    return out, Saved(input=input, out=out)


var_.check(check_dim("var"))
std_.check(check_dim("std"))


@std_.backward
def std_backward(dy, saved, needs, dim, keepdim, correction):
    x, zero = saved.input, plain(saved.out) == 0
    out = expand_reduced(np.where(zero, 1, saved.out), x.shape, dim, keepdim)
    grad = expand_reduced(
        np.where(zero, 0, dy * _share(count_reduced(x.shape, dim), correction, 1)), x.shape, dim, keepdim
    )
    return cast(_centered(x, dim) / out * grad, dy.dtype)


def _centered(x: Any, dim: Any) -> Any:
    # In float64, where the squares of float32 neither over- nor underflow.
    return _apart(x, numpy_axis(dim, x.ndim), count_reduced(x.shape, dim))


def _apart(x: Any, axis: Any, count: int) -> Any:
    count = max(count, 1)  # NumPy warns of a division by 0
    if type(x) is np.ndarray and x.dtype == float32:
        wide = x.astype(np.float64)
        wide -= add_reduce(wide, axis, keepdims=True) / count
        return wide
    wide = cast(x, float64)
    return wide - blocked_mean(wide, axis, True, count)


def _variance(x: Any, dim: Any, keepdim: bool, correction: float) -> tuple[Any, Any]:
    # (the variance over scale^2, scale), float64; None for 1.
    axis, count = numpy_axis(dim, x.ndim), count_reduced(x.shape, dim)
    deviation, share = _apart(x, axis, count), _share(count, correction, 1)
    squares = deviation * deviation
    if type(x) is np.ndarray and x.dtype == float32:
        return add_reduce(squares, axis, keepdims=keepdim) * share, None
    total = blocked_sum(squares, axis, keepdim)
    if x.dtype != float64 or not is_out_of_range(total):
        return total * share, None
    scale = power_of_two(deviation, axis)
    small = deviation / scale
    total = blocked_sum(small * small, axis, keepdim)
    return total * share, scale if keepdim else scale.reshape(total.shape)


def _share(count: int, correction: float, factor: float) -> float:
    free = count - correction
    return factor / free if free > 0 else math.nan


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


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariances of variables: input [variables, observations] -> [variables, variables]; [observations] -> [].

    Sums of products are divided by the number of observations minus `correction`. fweights [observations]: integer
    frequencies; aweights [observations]: relative weights. In float32, also inside autocast, rounded once; the
    result has the wider dtype of input and aweights.
    Raises ShapeError for more axes, weights of another shape and too few observations, ArgumentError for negative
    weights.
    """
    if input.ndim > 2:
        raise ShapeError("cov", "input [variables, observations]", f"shape {tuple(input.shape)}")
    with autocast(enabled=False):
        found = squeeze(_covariances(input, correction, fweights, aweights))
        return to(found, _result_dtype(input, aweights))


def corrcoef(input: Tensor) -> Tensor:
    """The correlations of variables: input [variables, observations] -> [variables, variables], between -1 and 1.

    In float32, also inside autocast, rounded once; NaN for a constant variable. Raises ShapeError for more than
    two axes and for fewer than two observations.
    """
    if input.ndim > 2:
        raise ShapeError("corrcoef", "input [variables, observations]", f"shape {tuple(input.shape)}")
    with autocast(enabled=False):
        wide = to(input, accumulator(_result_dtype(input, None)))
        rows = wide if input.ndim == 2 else reshape(wide, (1, -1))
        if rows.shape[1] < 2:
            raise ShapeError("corrcoef", "at least two observations", f"{rows.shape[1]}")
        units = div(sub(rows, mean(rows, 1, True)), std(rows, 1, keepdim=True))
        found = div(matmul(units, transpose(units, 0, 1)), rows.shape[1] - 1)
        return to(squeeze(clamp(found, -1, 1)), _result_dtype(input, None))


def _covariances(input: Tensor, correction: int, fweights: Tensor | None, aweights: Tensor | None) -> Tensor:
    wide = to(input, accumulator(_result_dtype(input, aweights)))
    rows = wide if input.ndim == 2 else reshape(wide, (1, -1))
    count = rows.shape[1]
    weight = None
    for name, each in (("fweights", fweights), ("aweights", aweights)):
        if each is None:
            continue
        if each.shape != (count,) or (name == "fweights" and each.is_floating_point()):
            kind = "whole numbers" if name == "fweights" else "numbers"
            raise ShapeError("cov", f"{name} [{count}], {kind}", f"{each.dtype.name} {list(each.shape)}")
        check_values("cov", each.array, each.array < 0, f"{name} from 0", None, ArgumentError)
        weight = to(each, rows.dtype) if weight is None else mul(weight, to(each, rows.dtype))
    if weight is None and count <= correction:
        raise ShapeError("cov", f"more than {correction} observations", f"{count}")
    total: Any = count if weight is None else sum(weight)
    mean = div(sum(rows if weight is None else mul(rows, weight), 1, True), total)
    centered = sub(rows, mean)
    free: Any = total - correction
    if aweights is not None:
        free = sub(total, div(mul(sum(mul(weight, to(aweights, rows.dtype))), correction), total))
    return div(matmul(centered if weight is None else mul(centered, weight), transpose(centered, 0, 1)), free)


def _result_dtype(input: Tensor, aweights: Tensor | None) -> DType:
    need_arithmetic("cov", input)
    floats = [t.array.dtype for t in (input, aweights) if t is not None and t.is_floating_point()]
    return promote(*floats) if floats else default()

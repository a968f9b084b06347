"""Softmax and its kin: exponentials normalized along an axis, shifted by the maximum so that none overflows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..reduction.dot_products import dot_along
from ..shape.axes import axes, axis

__all__ = ["log_softmax", "logsumexp", "softmax", "softmin"]


def _need_axis(where: str, dim: Any, ndim: int) -> None:
    if dim is None:
        cure = f"dim={int(ndim not in (0, 1, 3))} is what PyTorch guesses here, dim=-1 the last axis"
        raise ArgumentError(where, "dim, the axis to normalize over", "None", cure)
    axis(where, dim, ndim)


def _over(dim: int, ndim: int) -> int | None:
    return dim if ndim else None  # CuPy's scalars have no axis to reduce


def detached_max(input: Any, dim: Any) -> Any:
    """The maximum along `dim`, as a constant: a shift by it cancels, and no derivative flows through it."""
    values = plain(input)
    if values.size:
        return values.max(dim, keepdims=True)
    shape = np.empty(values.shape, np.bool_).any(dim, keepdims=True).shape
    return np.full_like(values, -np.inf, shape=shape)


@op(cast=Cast.FP32, integers="float")
def softmax(input: Array, dim=None, dtype=None, _stacklevel: CompatArg = 3):
    """exp(x) along `dim`, divided by its sum there.

    input [...] -> [...]. Computed in float32 (float64 for float64 input), shifted by the maximum; `dtype` casts first
    and is the dtype of the answer. A slice that holds NaN, +inf or only -inf gives NaN.
    Raises RangeError for a `dim` out of range, ArgumentError without one: PyTorch's guess depends on the number of
    axes.
    """
    over = _over(dim, input.ndim)
    out = np.exp(input - detached_max(input, over))
    out /= blocked_sum(out, over, True)
    return out, Saved(out=out)


@softmax.check
def softmax_check(input, dim, dtype):
    _need_axis("softmax", dim, input.ndim)


@softmax.backward
def softmax_backward(dy, saved, needs, dim, dtype):
    slope = dy - dot_along(dy, saved.out, dim)
    slope *= saved.out
    return slope


@op(cast=Cast.FP32, integers="float")
def log_softmax(input: Array, dim=None, dtype=None, _stacklevel: CompatArg = 3):
    """x minus the logarithm of the sum of exp(x) along `dim`: the logarithm of softmax, without its underflow.

    input [...] -> [...]. Computed in float32 (float64 for float64 input); `dtype` casts first and is the dtype of the
    answer. Raises as `softmax` does.
    """
    over = _over(dim, input.ndim)
    out = input - detached_max(input, over)
    out -= np.log(blocked_sum(np.exp(out), over, True))
    return out, Saved(out=out)


@log_softmax.check
def log_softmax_check(input, dim, dtype):
    _need_axis("log_softmax", dim, input.ndim)


@log_softmax.backward
def log_softmax_backward(dy, saved, needs, dim, dtype):
    slope = np.exp(saved.out)
    slope *= -blocked_sum(dy, _over(dim, dy.ndim), True)
    slope += dy
    return slope


def softmin(input: Tensor, dim: int | None = None, dtype: Any = None, _stacklevel: CompatArg = 3) -> Tensor:
    """softmax of -input. input [...] -> [...]. Raises as `softmax` does."""
    return softmax(-input, dim, dtype)


@op(cast=Cast.FP32, integers="float")
def logsumexp(input: Array, dim, keepdim=False):
    """The logarithm of the sum of exp(x) over `dim`, an axis or several.

    input [...] -> [...] without `dim`, or with length 1 there if `keepdim`. Computed in float32 (float64 for float64
    input). Slices of -inf, and empty ones, give -inf; one with +inf gives inf. Raises RangeError for a `dim` out of
    range.
    """
    over = axes("logsumexp", dim, input.ndim)
    shift = detached_max(input, over)
    shift = np.where(np.isinf(shift), 0, shift)
    out = np.log(blocked_sum(np.exp(input - shift), over, True)) + shift
    return (out if keepdim else out.squeeze(over)), Saved(input=input)


@logsumexp.check
def logsumexp_check(input, dim, keepdim):
    axes("logsumexp", dim, input.ndim)


@logsumexp.backward
def logsumexp_backward(dy, saved, needs, dim, keepdim):
    # Shares of the sum itself: the result, rounded to 16 bits, would be off by as much as a factor of e^0.25 at 100.
    shape = saved.input.shape
    over = axes("logsumexp", dim, len(shape))
    kept = tuple([1 if i in over else n for i, n in enumerate(shape)])
    shift = detached_max(plain(saved.input), over)
    parts = np.exp(saved.input - np.where(np.isinf(shift), 0, shift))
    whole = blocked_sum(parts, over, True)
    return parts / np.where(plain(whole) == 0, 1, whole) * dy.reshape(kept)

"""Softmax, log-softmax, log-sum-exp and Gumbel softmax, shifted by the maximum so that no exponential overflows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.dispatch.batching.draws import of_samples
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_floating, normalize_axes, normalize_axis
from ..creation.constants import zeros_like
from ..indexing.scatter_reduce import scatter
from ..reduction.dot_products import dot_along

__all__ = ["gumbel_softmax", "log_softmax", "logsumexp", "softmax", "softmin"]


def _need_axis(where: str, dim: Any, ndim: int) -> None:
    if dim is None:
        cure = f"dim={int(ndim not in (0, 1, 3))} is what PyTorch guesses here, dim=-1 the last axis"
        raise ArgumentError(where, "dim, the axis to normalize over", "None", cure)
    normalize_axis(where, dim, ndim)


def _over(dim: int, ndim: int) -> int | None:
    return dim if ndim else None  # CuPy's scalars have no axis to reduce


def detached_max(input: Any, dim: Any) -> Any:
    """The maximum along `dim` as a constant: results do not depend on it, so no gradient flows through it."""
    values = plain(input)
    if values.size:
        return values.max(dim, keepdims=True)
    shape = np.empty(values.shape, np.bool_).any(dim, keepdims=True).shape
    return np.full_like(values, -np.inf, shape=shape)


@op(cast=Cast.FP32, integers="float")
def softmax(input: Array, dim=None, dtype=None, _stacklevel: CompatArg = 3):
    """exp(x) along `dim`, divided by its sum there.

    input [...] -> [...]. Computed in float32 (float64 for float64 input), shifted by the maximum; `dtype` casts first
    and is the dtype of the result. A slice that holds NaN, +inf or only -inf gives NaN.
    Raises RangeError for a `dim` out of range, ArgumentError without one: PyTorch's guess depends on the number of
    axes.
    """
    over = _over(dim, input.ndim)
    out = np.exp(input - detached_max(input, over))
    out /= blocked_sum(out, over, True)
    return out, Saved(out=out)


@softmax.backward
def softmax_backward(dy, saved, needs, dim, dtype):
    dx = dy - dot_along(dy, saved.out, dim)
    dx *= saved.out
    return dx


@op(cast=Cast.FP32, integers="float")
def log_softmax(input: Array, dim=None, dtype=None, _stacklevel: CompatArg = 3):
    """x minus the logarithm of the sum of exp(x) along `dim`: the logarithm of softmax, without its underflow.

    input [...] -> [...]. Computed in float32 (float64 for float64 input); `dtype` casts first and is the dtype of the
    result. Raises as `softmax` does.
    """
    over = _over(dim, input.ndim)
    out = input - detached_max(input, over)
    out -= np.log(blocked_sum(np.exp(out), over, True))
    return out, Saved(out=out)


@log_softmax.backward
def log_softmax_backward(dy, saved, needs, dim, dtype):
    dx = np.exp(saved.out)
    dx *= -blocked_sum(dy, _over(dim, dy.ndim), True)
    dx += dy
    return dx


for _op in (softmax, log_softmax):
    _op.check(lambda input, dim, dtype, name=_op.name: _need_axis(name, dim, input.ndim))


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
    over = normalize_axes("logsumexp", dim, input.ndim)
    shift = detached_max(input, over)
    shift = np.where(np.isinf(shift), 0, shift)
    out = np.log(blocked_sum(np.exp(input - shift), over, True)) + shift
    return (out if keepdim else out.squeeze(over)), Saved(input=input)


logsumexp.check(lambda input, dim, keepdim: normalize_axes("logsumexp", dim, input.ndim))


@logsumexp.backward
def logsumexp_backward(dy, saved, needs, dim, keepdim):
    # Softmax is recomputed from input: exp(input - result), with the result rounded to 16 bits, would be off by as much
    # as a factor of e^0.25 at 100.
    shape = saved.input.shape
    over = normalize_axes("logsumexp", dim, len(shape))
    keepdim_shape = tuple([1 if i in over else n for i, n in enumerate(shape)])
    shift = detached_max(plain(saved.input), over)
    exps = np.exp(saved.input - np.where(np.isinf(shift), 0, shift))
    total = blocked_sum(exps, over, True)
    return exps / np.where(plain(total) == 0, 1, total) * dy.reshape(keepdim_shape)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A differentiable sample of the classes along `dim` with probabilities softmax(logits).

    logits [...] -> [...]: the softmax, at the temperature tau, of logits with Gumbel noise; `hard`: its one-hot argmax,
    with the gradient of the softmax. eps changes nothing; PyTorch has it.
    Raises ArgumentError for a tau that is not positive, RangeError for a `dim` out of range, DTypeError for integers.
    Jang, Gu, Poole 2017, arXiv:1611.01144, eq. 2; Maddison, Mnih, Teh 2017, arXiv:1611.00712.
    """
    at = normalize_axis("gumbel_softmax", dim, logits.ndim)
    if not tau > 0:
        raise ArgumentError("gumbel_softmax", "a positive tau", f"{tau}")
    check_floating("gumbel_softmax", logits)

    def noise(g: np.random.Generator, sizes: tuple[int, ...]) -> Tensor:
        return tensor(g.gumbel(size=(*sizes, *logits.shape)), logits.dtype, logits.device)

    soft = softmax((logits + of_samples(noise)) / tau, at)
    if not hard:
        return soft
    largest = soft.detach().argmax(at, keepdim=True)
    return scatter(zeros_like(soft), at, largest, 1.0) - soft.detach() + soft

"""Regression losses, of a prediction and a target of one shape, and the Kullback-Leibler divergence.

reduction: "none", "mean" or "sum"; size_average and reduce, PyTorch's deprecated arguments, override it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_mean, blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import REDUCTIONS, check_reduction
from ..pointwise.sign_and_rounding import sign_of
from .class_labels import check_mean
from .cross_entropy import cross_entropy, nll_loss

__all__ = ["cross_entropy", "huber_loss", "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss"]


def reduce_loss(loss: Any, reduction: str) -> Any:
    """`loss` as it is, its mean, its sum, or its sum over the length of the first axis ("batchmean")."""
    if reduction == "none":
        return loss
    if reduction == "batchmean":
        return blocked_sum(loss) / _batch(loss)
    if reduction == "mean":
        return blocked_mean(loss, None, False, loss.size) if loss.size else loss.sum() * np.nan  # NumPy would warn
    return blocked_sum(loss)


def unreduced_grad(dy: Any, reduction: str, *operands: Any) -> Any:
    """The gradient of each element of the loss of broadcast operands before its reduction, given dy of the reduced."""
    if reduction == "batchmean":
        return dy / _batch(operands[0])
    if reduction != "mean":
        return dy
    one = len(operands) == 1
    return dy / (operands[0].size if one else math.prod(np.broadcast_shapes(*[o.shape for o in operands])))


def _batch(x: Any) -> int:
    return x.shape[0] if x.ndim else 1


def _residual_grads(grad: Any, needs: Any) -> tuple[Any, Any]:
    # The gradients of input and target, given that of input - target.
    return grad if needs[0] is not None else None, -grad if needs[1] is not None else None


def check_pair(where: str, input: Any, target: Any, reduction: Any, allowed: tuple[str, ...] = REDUCTIONS) -> None:
    """Raise ArgumentError for an unknown reduction, ShapeError for shapes that differ and for the mean of nothing."""
    check_reduction(where, reduction, allowed)
    if np.shape(input) != np.shape(target):
        cure = "reshape one, so that no element is compared with another's"
        needs = f"a target of the input's shape {tuple(np.shape(input))}"
        raise ShapeError(where, needs, f"{tuple(np.shape(target))}", cure)
    check_mean(where, input, reduction)


@op(cast=Cast.FP32, integers="float")
def mse_loss(
    input: Array,
    target: Array,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction="mean",
    weight: CompatArg = None,
):
    """(input - target)^2.

    input [...], target [...] -> [...] or []. Computed in float32 (float64 for float64 input).
    Raises ShapeError for shapes that differ and for the mean of nothing, ArgumentError for an unknown reduction.
    """
    residual = input - target
    residual *= residual
    return reduce_loss(residual, reduction), Saved(input=input, target=target)


@mse_loss.backward
def mse_loss_backward(dy, saved, needs, reduction):
    residual = saved.input - saved.target
    residual *= 2 * unreduced_grad(dy, reduction, residual)
    return _residual_grads(residual, needs)


@op(cast=Cast.FP32, integers="float")
def l1_loss(
    input: Array,
    target: Array,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction="mean",
    weight: CompatArg = None,
):
    """|input - target|, with gradient 0 where they are equal. Shapes, precision and errors as `mse_loss`."""
    return reduce_loss(abs(input - target), reduction), Saved(input=input, target=target)


@l1_loss.backward
def l1_loss_backward(dy, saved, needs, reduction):
    residual = saved.input - saved.target
    return _residual_grads(sign_of(plain(residual)) * unreduced_grad(dy, reduction, residual), needs)


for _op in (mse_loss, l1_loss):
    _op.check(lambda input, target, reduction, name=_op.name: check_pair(name, input, target, reduction))


@op(cast=Cast.FP32, integers="float")
def smooth_l1_loss(
    input: Array, target: Array, size_average: CompatArg = None, reduce: CompatArg = None, reduction="mean", beta=1.0
):
    """d^2 / (2 beta) for |d| < beta, else |d| - beta / 2, with d = input - target.

    Shapes, precision and errors as `mse_loss`; raises ArgumentError for a negative beta.
    Girshick 2015, arXiv:1504.08083, eq. 3 (beta 1).
    """
    size = abs(input - target)
    loss = size if beta == 0 else np.where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta)
    return reduce_loss(loss, reduction), Saved(input=input, target=target)


@smooth_l1_loss.check
def smooth_l1_loss_check(input, target, reduction, beta):
    check_pair("smooth_l1_loss", input, target, reduction)
    if not beta >= 0:
        raise ArgumentError("smooth_l1_loss", "a beta of 0 or more", f"{beta}")


@smooth_l1_loss.backward
def smooth_l1_loss_backward(dy, saved, needs, reduction, beta):
    residual = saved.input - saved.target
    derivative = np.sign(residual) if beta == 0 else np.where(abs(residual) < beta, residual / beta, np.sign(residual))
    return _residual_grads(derivative * unreduced_grad(dy, reduction, residual), needs)


@op(cast=Cast.FP32, integers="float")
def huber_loss(input: Array, target: Array, reduction="mean", delta=1.0, weight: CompatArg = None):
    """d^2 / 2 for |d| < delta, else delta (|d| - delta / 2), with d = input - target.

    Shapes, precision and errors as `mse_loss`; raises ArgumentError unless delta is positive.
    Huber 1964, Annals of Mathematical Statistics 35.
    """
    residual = abs(input - target)
    loss = np.where(residual < delta, 0.5 * residual * residual, delta * (residual - 0.5 * delta))
    return reduce_loss(loss, reduction), Saved(input=input, target=target)


@huber_loss.check
def huber_loss_check(input, target, reduction, delta):
    check_pair("huber_loss", input, target, reduction)
    if not delta > 0:
        raise ArgumentError("huber_loss", "a positive delta", f"{delta}")


@huber_loss.backward
def huber_loss_backward(dy, saved, needs, reduction, delta):
    residual = saved.input - saved.target
    derivative = np.where(abs(residual) < delta, residual, delta * np.sign(residual))
    return _residual_grads(derivative * unreduced_grad(dy, reduction, residual), needs)


@op(cast=Cast.FP32, integers="float")
def kl_div(
    input: Array,
    target: Array,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction="mean",
    log_target=False,
):
    """target * (log(target) - input): the Kullback-Leibler divergence of `input`, log-probabilities, from `target`.

    input [...], target [...], probabilities or their logarithms with `log_target` -> [...] or []. "batchmean" divides
    the sum by the length of the first axis, "mean" by the number of elements. Precision and errors as `mse_loss`.
    """
    weight, log = (np.exp(target), target) if log_target else (target, np.log(np.where(target == 0, 1, target)))
    return reduce_loss(weight * (log - input), reduction), Saved(input=input, target=target)


@kl_div.check
def kl_div_check(input, target, reduction, log_target):
    check_pair("kl_div", input, target, reduction, (*REDUCTIONS, "batchmean"))


@kl_div.backward
def kl_div_backward(dy, saved, needs, reduction, log_target):
    x, t = saved.input, saved.target
    grad = unreduced_grad(dy, reduction, x)
    weight = np.exp(t) if log_target else t
    dx = -grad * weight if needs[0] is not None else None
    if needs[1] is None:
        return dx, None
    return dx, grad * (weight * (t - x + 1) if log_target else np.log(np.where(t == 0, 1, t)) + 1 - x)

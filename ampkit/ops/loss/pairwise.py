"""Margin, cosine and triplet losses, and Poisson and Gaussian negative log-likelihoods.

reduction: "none", "mean" or "sum"; size_average and reduce, PyTorch's deprecated arguments, override it. Computed
in float32 (float64 for float64 input). An unknown reduction raises ArgumentError, operands that do not broadcast raise
ShapeError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_reduction, check_values
from ..linalg.distances import cosine_similarity, pairwise_distance
from ..pointwise.selection import clamp, minimum, where
from ..pointwise.smooth_activations import sigmoid, softplus_array
from .class_labels import check_mean
from .regression import reduce_loss, unreduced_grad

__all__ = [
    "cosine_embedding_loss", "gaussian_nll_loss", "hinge_embedding_loss", "margin_ranking_loss", "poisson_nll_loss",
    "soft_margin_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip


@op(cast=Cast.FP32, integers="float")
def margin_ranking_loss(
    input1: Array,
    input2: Array,
    target: Array,
    margin=0.0,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction="mean",
):
    """max(0, margin - target (input1 - input2)): target 1 ranks input1 higher by the margin, -1 lower.

    input1, input2, target broadcast: [...] -> [...] or [].
    """
    loss = np.maximum(margin - target * (input1 - input2), 0)
    return reduce_loss(loss, reduction), Saved(input1=input1, input2=input2, target=target)


@margin_ranking_loss.backward
def margin_ranking_loss_backward(dy, saved, needs, margin, reduction):
    a, b, t = saved.input1, saved.input2, saved.target
    positive = plain(margin - t * (a - b)) >= 0
    grad = np.where(positive, unreduced_grad(dy, reduction, a, b, t), 0)
    return -grad * t, grad * t, -grad * (a - b) if needs[2] is not None else None


@op(cast=Cast.FP32, integers="float")
def hinge_embedding_loss(
    input: Array, target: Array, margin=1.0, size_average: CompatArg = None, reduce: CompatArg = None, reduction="mean"
):
    """A distance `input` where target is 1, max(0, margin - input) where it is -1: [...], [...] -> [...] or []."""
    far = np.maximum(margin - input, 0)
    loss = np.where(target != 1, far, 0) + np.where(target != -1, input, 0)
    return reduce_loss(loss, reduction), Saved(input=input, target=target)


@hinge_embedding_loss.backward
def hinge_embedding_loss_backward(dy, saved, needs, margin, reduction):
    x, t = plain(saved.input), plain(saved.target)
    derivative = (t != -1).astype(x.dtype) - ((t != 1) & (x <= margin)).astype(x.dtype)
    return unreduced_grad(dy, reduction, x, t) * derivative, None


@op(cast=Cast.FP32, integers="float")
def soft_margin_loss(
    input: Array, target: Array, size_average: CompatArg = None, reduce: CompatArg = None, reduction="mean"
):
    """log(1 + exp(-target input)), target 1 or -1, without overflow: [...], [...] -> [...] or []."""
    return reduce_loss(softplus_array(-target * input), reduction), Saved(input=input, target=target)


@soft_margin_loss.backward
def soft_margin_loss_backward(dy, saved, needs, reduction):
    x, t = saved.input, saved.target
    grad = unreduced_grad(dy, reduction, x, t) * apply(sigmoid, -t * x)
    return -grad * t, -grad * x if needs[1] is not None else None


@op(cast=Cast.FP32, integers="float")
def poisson_nll_loss(
    input: Array,
    target: Array,
    log_input=True,
    full=False,
    size_average: CompatArg = None,
    eps=1e-8,
    reduce: CompatArg = None,
    reduction="mean",
):
    """Negative log-likelihood of counts `target` under a Poisson distribution of rate exp(input), up to a constant.

    log_input=False: of rate input, with log(input + eps). full: with the constant, by Stirling's formula for counts
    above 1. [...], [...] -> [...] or [].
    """
    loss = np.exp(input) - target * input if log_input else input - target * np.log(input + eps)
    if full:
        large = plain(target) > 1
        t = np.where(large, target, 1)
        loss = loss + np.where(large, t * np.log(t) - t + 0.5 * np.log(2 * math.pi * t), 0)
    return reduce_loss(loss, reduction), Saved(input=input, target=target)


@poisson_nll_loss.backward
def poisson_nll_loss_backward(dy, saved, needs, log_input, full, eps, reduction):
    x, t = saved.input, saved.target
    grad = unreduced_grad(dy, reduction, x, t)
    dx = grad * (np.exp(x) - t if log_input else 1 - t / (x + eps))
    if needs[1] is None:
        return dx, None
    dt = -(x if log_input else np.log(x + eps))
    if full:
        large = plain(t) > 1
        safe = np.where(large, t, 1)
        dt = dt + np.where(large, np.log(safe) + 0.5 / safe, 0)
    return dx, grad * dt


@op(cast=Cast.FP32, integers="float")
def gaussian_nll_loss(input: Array, target: Array, var: Array, full=False, eps=1e-6, reduction="mean"):
    """(log(var) + (input - target)^2 / var) / 2, var clamped to eps: Gaussian NLL of target, up to a constant.

    full: with the constant, log(2 pi) / 2. input [..., n], target [..., n], var [..., n], one for each row [..., 1] or
    [...], or a number -> [..., n] or []. The clamp passes gradients to var. Raises RangeError for a negative var.
    Nix, Weigend 1994, ICNN, eq. 6.
    """
    spread = _per_row(var, input)
    check_values("gaussian_nll_loss", plain(spread), plain(spread) < 0, "a var of 0 or more")
    safe_var, residual = _clamped(spread, eps), input - target
    loss = 0.5 * (np.log(safe_var) + residual * residual / safe_var) + (0.5 * math.log(2 * math.pi) if full else 0)
    return reduce_loss(loss, reduction), Saved(input=input, target=target, var=var)


def _per_row(var: Any, input: Any) -> Any:
    # A var without the last axis is one per row, as in PyTorch, even where it would broadcast along that axis.
    if not hasattr(var, "dtype"):
        return np.full_like(plain(input), var, shape=1).reshape(())
    return np.expand_dims(var, -1) if var.shape != input.shape and var.shape == input.shape[:-1] else var


def _clamped(var: Any, eps: float) -> Any:
    # Clamped from below, with derivative 1 everywhere.
    return var + np.maximum(eps - plain(var), 0)


@gaussian_nll_loss.backward
def gaussian_nll_loss_backward(dy, saved, needs, full, eps, reduction):
    var = _per_row(saved.var, saved.input)
    grad = unreduced_grad(dy, reduction, saved.input, saved.target, var)
    safe_var, residual = _clamped(var, eps), saved.input - saved.target
    dinput = grad * residual / safe_var
    if needs[2] is None:
        return dinput, -dinput, None
    dvar = 0.5 * (grad / safe_var - dinput * residual / safe_var)
    return dinput, -dinput, dvar if var is saved.var else dvar.sum(-1)


def _check(op: Any) -> Any:
    def check(*args: Any, **kwargs: Any) -> None:
        reduction = kwargs.get("reduction", args[-1])
        check_reduction(op.name, reduction)
        for name, item in zip(op.signature.names, args, strict=False):
            if not hasattr(item, "dtype") and name != "var":  # NumPy's functions make float64 of a number
                raise DTypeError(op.name, f"a Tensor for `{name}`", f"the number {item}", "wrap it: ampkit.tensor(...)")
            if hasattr(item, "dtype"):
                check_mean(op.name, item, reduction)

    return check


for _op in (margin_ranking_loss, hinge_embedding_loss, soft_margin_loss, poisson_nll_loss, gaussian_nll_loss):
    _op.check(_check(_op))


def reduce_tensor(loss: Tensor, where: str, reduction: str) -> Tensor:
    """`loss`, its sum or its mean. Raises ArgumentError for an unknown reduction."""
    check_reduction(where, reduction)
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cosine of two vectors where target is 1, max(0, cosine - margin) where it is -1.

    input1, input2 [N, n] or [n], target [N] or [] -> [N] or []. Other targets give 0. Raises ShapeError for
    other shapes.
    """
    if target.ndim > 1 or input1.ndim != target.ndim + 1 or input2.ndim != target.ndim + 1:
        got = ", ".join(str(tuple(t.shape)) for t in (input1, input2, target))
        raise ShapeError("cosine_embedding_loss", "two inputs [N, n] and target [N], or [n] and []", got)
    cosine = cosine_similarity(input1, input2, -1, 1e-6)  # PyTorch adds the square of it to squared lengths
    far = where(target == -1, clamp(cosine - margin, 0), 0.0)
    loss = where(target == 1, 1 - cosine, far)
    return reduce_tensor(loss, "cosine_embedding_loss", reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin + |anchor - positive| - |anchor - negative|), distances in the p-norm: [N, n] -> [N] or [].

    swap: the negative is compared with the nearer of the two others (Balntas et al. 2016, BMVC, sec. 2.2).
    Raises ArgumentError for a margin that is not positive. Schroff et al. 2015, arXiv:1503.03832, eq. 2.
    """
    distance = partial(pairwise_distance, p=p, eps=eps)
    return _triplet_loss("triplet_margin_loss", distance, anchor, positive, negative, margin, swap, reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin + d(anchor, positive) - d(anchor, negative)), d `distance_function`: [N, ...] -> as d returns.

    Without one, d is `pairwise_distance`. swap: the negative is compared with the nearer of the two others (Balntas et
    al. 2016, BMVC, sec. 2.2). Raises ArgumentError for a margin that is not positive, ShapeError for inputs of
    different ranks. Schroff et al. 2015, arXiv:1503.03832, eq. 2.
    """
    where = "triplet_margin_with_distance_loss"
    shapes = [tuple(x.shape) for x in (anchor, positive, negative)]
    if len({len(s) for s in shapes}) > 1:
        raise ShapeError(where, "three tensors of one rank", " and ".join(map(str, shapes)))
    distance = pairwise_distance if distance_function is None else distance_function
    return _triplet_loss(where, distance, anchor, positive, negative, margin, swap, reduction)


def _triplet_loss(
    where: str,
    distance: Any,
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float,
    swap: bool,
    reduce: str,
) -> Tensor:
    if not margin > 0:
        raise ArgumentError(where, "a positive margin", f"{margin}")
    near, far = distance(anchor, positive), distance(anchor, negative)
    if not isinstance(near, Tensor) or not isinstance(far, Tensor):
        raise DTypeError(where, "a distance_function that returns a Tensor", type(near).__name__)
    far = minimum(far, distance(positive, negative)) if swap else far
    return reduce_tensor(clamp(near - far + margin, 0), where, reduce)

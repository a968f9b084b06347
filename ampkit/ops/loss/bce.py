"""Binary cross entropy: of logits, and of probabilities.

reduction: "none", "mean" or "sum"; size_average and reduce, PyTorch's deprecated arguments, override it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import broadcasts_to, check_values
from ..pointwise.smooth_activations import sigmoid, softplus_array
from .regression import check_pair, reduce_loss, unreduced_grad

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits"]


@op(cast=Cast.FP32, integers="float")
def binary_cross_entropy_with_logits(
    input: Array,
    target: Array,
    weight: Array | None = None,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction="mean",
    pos_weight: Array | None = None,
):
    """The cross entropy of sigmoid(input) with target probabilities, in log space: finite for every logit.

    input [...], target [...] in [0, 1]; weight, pos_weight broadcast to them -> [...] or []. The loss is
    weight * (pos_weight * target * log(1 + exp(-x)) + (1 - target) * log(1 + exp(x))). Computed in float32 (float64
    for float64 input). Raises ShapeError for shapes that differ and for a mean over nothing, ArgumentError for an
    unknown reduction.
    """
    loss = (1 - target) * input + _positive_weight(target, pos_weight) * softplus_array(-input)
    if weight is not None:
        loss *= weight
    return reduce_loss(loss, reduction), Saved(input=input, target=target, weight=weight, pos_weight=pos_weight)


@binary_cross_entropy_with_logits.check
def bce_with_logits_check(input, target, weight, reduction, pos_weight):
    check_pair("binary_cross_entropy_with_logits", input, target, reduction)
    check_broadcast("binary_cross_entropy_with_logits", input, weight=weight, pos_weight=pos_weight)


@binary_cross_entropy_with_logits.backward
def bce_with_logits_backward(dy, saved, needs, reduction):
    x, t, weight, pos_weight = saved.input, saved.target, saved.weight, saved.pos_weight
    grad = unreduced_grad(dy, reduction, x)
    weighted = grad if weight is None else grad * weight
    dx = weighted * ((1 - t) - _positive_weight(t, pos_weight) * apply(sigmoid, -x)) if needs[0] is not None else None
    if not any(n is not None for n in needs[1:]):
        return dx, None, None, None
    log = softplus_array(-x)
    dt = weighted * ((0 if pos_weight is None else (pos_weight - 1) * log) - x) if needs[1] is not None else None
    dw = grad * ((1 - t) * x + _positive_weight(t, pos_weight) * log) if needs[2] is not None else None
    return dx, dt, dw, weighted * t * log if needs[3] is not None else None


def _positive_weight(target: Any, pos_weight: Any) -> Any:
    return 1 if pos_weight is None else 1 + (pos_weight - 1) * target


def check_broadcast(where: str, input: Any, **scales: Any) -> None:
    """Raise ShapeError unless each of `scales` broadcasts to the shape of `input`, or is missing."""
    for name, scale in scales.items():
        if scale is not None and not broadcasts_to(np.shape(scale), np.shape(input)):
            raise ShapeError(where, f"{name} that broadcasts to {tuple(np.shape(input))}", f"{tuple(np.shape(scale))}")


@op(
    cast=Cast.BANNED,
    integers="float",
    cure="use binary_cross_entropy_with_logits on the logits: sigmoid in 16 bits loses them",
)
def binary_cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = None,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction="mean",
):
    """The cross entropy of probabilities with target probabilities; each logarithm is clamped to at least -100.

    input [...] in [0, 1], target [...]; weight broadcasts to them -> [...] or []. Computed in float32 (float64 for
    float64 input); raises inside autocast. Raises ShapeError for shapes that differ and for a mean over nothing,
    ArgumentError for an unknown reduction, RangeError for an input outside [0, 1], named with its position.
    """
    x = plain(input)
    check_unit_interval(x, (x < 0) | (x > 1))
    loss = (target - 1) * _log(1 - input) - target * _log(input)
    if weight is not None:
        loss *= weight
    return reduce_loss(loss, reduction), Saved(input=input, target=target, weight=weight)


@binary_cross_entropy.check
def binary_cross_entropy_check(input, target, weight, reduction):
    check_pair("binary_cross_entropy", input, target, reduction)
    check_broadcast("binary_cross_entropy", input, weight=weight)


@binary_cross_entropy.backward
def binary_cross_entropy_backward(dy, saved, needs, reduction):
    x, t, weight = saved.input, saved.target, saved.weight
    grad = unreduced_grad(dy, reduction, x)
    weighted = grad if weight is None else grad * weight
    # 1e-12 bounds the gradient at 0 and 1, where the derivative of the clamped logarithm is 0 and would stop learning.
    dx = weighted * (x - t) / np.maximum(x * (1 - x), 1e-12) if needs[0] is not None else None
    dt = weighted * (_log(1 - x) - _log(x)) if needs[1] is not None else None
    return dx, dt, grad * ((t - 1) * _log(1 - x) - t * _log(x)) if needs[2] is not None else None


def _log(x: Any) -> Any:
    return np.maximum(np.log(x), -100)


def check_unit_interval(input: Any, outside: Any) -> None:
    """Raise RangeError, deferred on a GPU, for the first element of `input` where `outside` is True."""
    cure = "pass probabilities, or logits to binary_cross_entropy_with_logits"
    check_values("binary_cross_entropy", input, outside, "inputs from 0 to 1", cure)

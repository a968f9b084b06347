"""Multi-class and multi-label margin losses.

reduction: "none", "mean" or "sum"; size_average and reduce, PyTorch's deprecated arguments, override it. Computed
in float32 (float64 for float64 input). Classes are the last axis. An unknown reduction raises ArgumentError, shapes
that do not fit ShapeError, labels that are not integers DTypeError, and labels out of range RangeError.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import DTypeError, ShapeError, check_choice
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_reduction, check_values
from ..pointwise.smooth_activations import softplus_array
from .bce import bce_with_logits_backward, check_broadcast
from .class_labels import check_mean
from .regression import check_pair, reduce_loss, unreduced_grad

__all__ = ["multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss"]


@op(cast=Cast.FP32, integers="refuse")
def multi_margin_loss(
    input: Array,
    target: Index,
    p: float = 1,
    margin=1.0,
    weight: Array | None = None,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction="mean",
):
    """The sum over classes i other than y, the target, of weight_y max(0, margin - input_y + input_i)^p, divided by C.

    input [N, C] or [C], target [N] or [] of labels from 0 to C - 1, weight [C], p 1 or 2 -> [N] or []. A 0-d
    input counts as [1].
    Crammer, Singer 2001, JMLR 2, 265-292 (which takes the largest term, not the sum).
    """
    x = _with_classes(input)
    _check_range("multi_margin_loss", target, 0, x.shape[-1])
    violation, scale = _violations(x, target, margin), _label_weight(weight, x, target)
    loss = blocked_sum(violation if p == 1 else violation * violation, -1) * scale / x.shape[-1]
    return reduce_loss(loss, reduction), Saved(input=input, target=target, weight=weight)


@multi_margin_loss.check
def multi_margin_loss_check(input, target, p, margin, weight, reduction):
    where, classes = "multi_margin_loss", np.shape(input)[-1:] or (1,)
    _check(where, input, target, reduction, np.shape(input)[:-1])
    check_choice(where, "p", p, 1, 2)
    if weight is not None and np.shape(weight) != classes:
        raise ShapeError(where, f"a weight for each of {classes[0]} classes", f"shape {tuple(np.shape(weight))}")


@multi_margin_loss.backward
def multi_margin_loss_backward(dy, saved, needs, p, margin, reduction):
    x, target, weight = _with_classes(saved.input), saved.target, saved.weight
    violation, is_label, classes = _violations(x, target, margin), _one_hot(target, x), x.shape[-1]
    grad = _loss_grads(dy, reduction, plain(target)) / classes
    dx = dw = None
    if needs[0] is not None:
        dviolation = (grad * _label_weight(weight, x, target))[..., None] * (
            (violation > 0) if p == 1 else 2 * violation
        )
        dx = (dviolation - np.where(is_label, blocked_sum(dviolation, -1, True), 0)).reshape(saved.input.shape)
    if needs[2] is not None:
        each = grad * blocked_sum(violation if p == 1 else violation * violation, -1)
        dw = blocked_sum(np.where(is_label, each[..., None], 0).reshape(-1, classes), 0)
    return dx, None, dw


def _with_classes(x: Any) -> Any:
    return x if x.ndim else x.reshape(1)


def _one_hot(target: Any, input: Any) -> Any:
    return plain(target)[..., None] == np.arange(input.shape[-1], like=plain(target))


def _violations(input: Any, target: Any, margin: float) -> Any:
    # [..., C]: max(0, margin - input_y + input_i), 0 for the target's own class; NaN for a label out of range.
    is_label = _one_hot(target, input)
    own = np.where(is_label.any(-1, keepdims=True), np.where(is_label, input, 0).sum(-1, keepdims=True), np.nan)
    return np.where(is_label, 0, np.maximum(margin - own + input, 0))


def _label_weight(weight: Any, input: Any, target: Any) -> Any:
    return 1 if weight is None else np.where(_one_hot(target, input), weight, 0).sum(-1)


@op(cast=Cast.FP32, integers="refuse")
def multilabel_margin_loss(
    input: Array, target: Index, size_average: CompatArg = None, reduce: CompatArg = None, reduction="mean"
):
    """The sum over labels y and other classes i of max(0, 1 - input_y + input_i), divided by C.

    input [N, C] or [C]; target of the same shape: labels from 0 to C - 1, up to the first -1 -> [N] or []. 0-d
    tensors count as [1].
    """
    x, labels = _with_classes(input), _with_classes(target)
    _check_range("multilabel_margin_loss", labels, -1, x.shape[-1])
    loss = blocked_sum(np.maximum(_pairs(x, labels), 0), (-2, -1)) / x.shape[-1]
    return reduce_loss(loss, reduction), Saved(input=input, target=target)


@multilabel_margin_loss.check
def multilabel_margin_loss_check(input, target, reduction):
    _check("multilabel_margin_loss", input, target, reduction, np.shape(input))


@multilabel_margin_loss.backward
def multilabel_margin_loss_backward(dy, saved, needs, reduction):
    x, target = _with_classes(saved.input), _with_classes(saved.target)
    is_label, _ = _label_masks(target)
    grad = _loss_grads(dy, reduction, plain(x)[..., 0]) / x.shape[-1]
    active = (plain(_pairs(x, target)) > 0).astype(x.dtype)
    derivative = blocked_sum(active, -2) - np.where(is_label, blocked_sum(active, -1, True), 0).sum(-2)
    return (grad[..., None] * derivative).reshape(saved.input.shape), None


def _label_masks(target: Any) -> tuple[Any, Any]:
    # (one-hot of the j-th label [..., J, C], False from the first -1 on; the classes without a label [..., 1, C]).
    labels = plain(target)
    is_label = _one_hot(labels, labels) & (np.cumsum(labels < 0, -1) == 0)[..., None]
    return is_label, ~is_label.any(-2, keepdims=True)


def _pairs(input: Any, target: Any) -> Any:
    # [..., J, C]: 1 - input_y + input_i for the j-th label y and another class i; 0 where there is no such pair.
    is_label, other = _label_masks(target)
    row = np.expand_dims(input, -2)
    own = np.where(is_label, row, 0).sum(-1, keepdims=True)
    return np.where(is_label.any(-1, keepdims=True) & other, 1 - own + row, 0)


@op(cast=Cast.FP32, integers="float")
def multilabel_soft_margin_loss(
    input: Array,
    target: Array,
    weight: Array | None = None,
    size_average: CompatArg = None,
    reduce: CompatArg = None,
    reduction="mean",
):
    """The binary cross entropy of sigmoid(input) with target in [0, 1], averaged over the classes.

    input [..., C], target [..., C]; weight broadcasts to them -> [...] or []; without overflow.
    """
    loss = (1 - target) * input + softplus_array(-input)
    loss = blocked_sum(loss if weight is None else loss * weight, -1) / input.shape[-1]
    return reduce_loss(loss, reduction), Saved(input=input, target=target, weight=weight)


@multilabel_soft_margin_loss.check
def multilabel_soft_margin_loss_check(input, target, weight, reduction):
    check_pair("multilabel_soft_margin_loss", input, target, reduction)
    if not np.ndim(input):
        raise ShapeError("multilabel_soft_margin_loss", "input [..., C]", "shape ()")
    check_broadcast("multilabel_soft_margin_loss", input, weight=weight)


@multilabel_soft_margin_loss.backward
def multilabel_soft_margin_loss_backward(dy, saved, needs, reduction):
    # each class contributes its binary cross entropy, over their number
    x, t, weight = saved.input, saved.target, saved.weight
    grad = np.expand_dims(_loss_grads(dy, reduction, plain(x)[..., :1].sum(-1)), -1) / max(x.shape[-1], 1)
    of_classes = Saved(input=x, target=t, weight=weight, pos_weight=None)
    return bce_with_logits_backward.reference.run(grad * np.ones_like(plain(x)), of_classes, (*needs, None), "none")[:3]


def _loss_grads(dy: Any, reduction: str, over: Any) -> Any:
    # The gradient of each of the losses, which have the shape of `over`, given dy of the reduced loss.
    return np.broadcast_to(unreduced_grad(dy, reduction, over), over.shape)


def _check(where: str, input: Any, target: Any, reduction: Any, shape: tuple[int, ...]) -> None:
    check_reduction(where, reduction)
    if np.ndim(input) > 2 or 0 in np.shape(input)[-1:] or tuple(np.shape(target)) != tuple(shape):
        found = f"{tuple(np.shape(input))} and {tuple(np.shape(target))}"
        raise ShapeError(where, f"input [N, C] or [C], C from 1, and target {list(shape)}", found)
    if target.dtype.kind not in "iu":
        raise DTypeError(where, "integer labels", target.dtype.name, "cast them with .long()")
    check_mean(where, input, reduction)


def _check_range(where: str, target: Any, least: int, classes: int) -> None:
    labels = plain(target)
    check_values(where, labels, (labels < least) | (labels >= classes), f"labels from {least} to {classes - 1}")

"""Multi-class and multi-label margin losses, and the triplet loss of a distance function.

reduction: "none", "mean" or "sum"; size_average and reduce, PyTorch's deprecated arguments, override it. Computed
in float32 (float64 for float64 input). Classes are the last axis. An unknown reduction raises ArgumentError, shapes
that do not fit ShapeError, labels that are not integers DTypeError, and labels out of range RangeError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.autograd.traced_array import TracedArray, apply, plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_reduction
from ..linalg.distances import pairwise_distance
from ..pointwise.selection import clamp, minimum
from ..pointwise.smooth_activations import sigmoid
from .bce import check_broadcast, softplus
from .class_labels import check_mean
from .pairwise import reduce_tensor
from .regression import check_pair, reduce_loss

__all__ = [
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip


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
    if p not in (1, 2):
        raise ArgumentError(where, "p 1 or 2", f"{p}")
    if weight is not None and np.shape(weight) != classes:
        raise ShapeError(where, f"a weight for each of {classes[0]} classes", f"shape {tuple(np.shape(weight))}")


@multi_margin_loss.backward
def multi_margin_loss_backward(dy, saved, needs, p, margin, reduction):
    x, target, weight = _with_classes(saved.input), saved.target, saved.weight
    violation, is_label, classes = _violations(x, target, margin), _one_hot(target, x), x.shape[-1]
    grad = _unreduced_grad(dy, reduction, plain(target)) / classes
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
    grad = _unreduced_grad(dy, reduction, plain(x)[..., 0]) / x.shape[-1]
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
    loss = (1 - target) * input + softplus(-input)
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
    x, t, weight = saved.input, saved.target, saved.weight
    grad = np.expand_dims(_unreduced_grad(dy, reduction, plain(x)[..., 0]), -1) / x.shape[-1]
    grad = grad + np.zeros_like(plain(x))
    weighted = grad if weight is None else grad * weight
    dx = weighted * (1 - t - apply(sigmoid, -x)) if needs[0] is not None else None
    dt = -weighted * x if needs[1] is not None else None
    return dx, dt, grad * ((1 - t) * x + softplus(-x)) if needs[2] is not None else None


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
    if not margin > 0:
        raise ArgumentError(where, "a positive margin", f"{margin}")
    shapes = [tuple(x.shape) for x in (anchor, positive, negative)]
    if len({len(s) for s in shapes}) > 1:
        raise ShapeError(where, "three tensors of one rank", " and ".join(map(str, shapes)))
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if not isinstance(near, Tensor) or not isinstance(far, Tensor):
        raise DTypeError(where, "a distance_function that returns a Tensor", type(near).__name__)
    far = minimum(far, distance(positive, negative)) if swap else far
    return reduce_tensor(clamp(near - far + margin, 0), where, reduction)


def _unreduced_grad(dy: Any, reduction: str, over: Any) -> Any:
    # The gradient of each of the losses `over` before the reduction, given dy of the reduced loss.
    if reduction == "none":
        return dy
    return (dy / over.size if reduction == "mean" else dy) + np.zeros(over.shape, dy.dtype, like=over)


def _check(where: str, input: Any, target: Any, reduction: Any, shape: tuple[int, ...]) -> None:
    check_reduction(where, reduction)
    if np.ndim(input) > 2 or 0 in np.shape(input)[-1:] or tuple(np.shape(target)) != tuple(shape):
        found = f"{tuple(np.shape(input))} and {tuple(np.shape(target))}"
        raise ShapeError(where, f"input [N, C] or [C], C from 1, and target {list(shape)}", found)
    if target.dtype.kind not in "iu":
        raise DTypeError(where, "integer labels", target.dtype.name, "cast them with .long()")
    check_mean(where, input, reduction)


def _check_range(where: str, target: Any, least: int, classes: int) -> None:
    def fail(value: int, position: Any) -> None:
        raise RangeError(where, f"labels from {least} to {classes - 1}", f"{value} at position {position}")

    if not isinstance(target, TracedArray):
        backends.backend_of(target).raise_if(target, (target < least) | (target >= classes), fail)

"""Cross entropy with labels or probabilities, and negative log-likelihood.

Classes are axis 1, or the only axis.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.dtypes import is_float
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import apply
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_reduction
from ..nn.softmax import detached_max, log_softmax
from .class_labels import (
    INTEGERS,
    check_classes,
    check_mean,
    check_weight,
    checked_labels,
    class_axis,
    label_grads,
    label_weights,
    one_hot,
    per_class,
    split_ignored,
    take_label,
)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: CompatArg = None,
    ignore_index: int = -100,
    reduce: CompatArg = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The negative log-probability of the target under softmax(input).

    input [C], [N, C] or [N, C, ...] logits; target without the axis of classes: labels from 0 to C - 1, or
    `ignore_index` for no loss and no gradient; or of the input's shape: probabilities; weight [C] per class -> the
    shape of labels, or []. The mean over labels is weighted by `weight`; it is NaN if all labels are ignored.
    label_smoothing mixes the target with the uniform distribution (Szegedy et al. 2015, arXiv:1512.00567, sec. 7).
    Computed in float32 (float64 for float64 input).
    Raises ShapeError for shapes that do not fit and for a mean over nothing, RangeError for a label out of range, named
    with its position, DTypeError for labels that are not integers, ArgumentError for an unknown reduction, a
    label_smoothing outside [0, 1], and an ignore_index >= 0 with probabilities.
    """
    if isinstance(target, Tensor) and is_float(target.array.dtype):
        if ignore_index >= 0:
            raise ArgumentError("cross_entropy", "ignore_index with labels", f"{ignore_index} with probabilities")
        return cross_entropy_probabilities(input, target, weight, reduction, label_smoothing)
    return cross_entropy_(input, target, weight, ignore_index, reduction, label_smoothing)


@op(cast=Cast.FP32, integers="refuse")
def cross_entropy_(
    input: Array,
    target: Index,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction="mean",
    label_smoothing=0.0,
):
    """`cross_entropy` for labels. It saves the logits and the log-sum-exp per label, not the probabilities."""
    axis, classes = class_axis(input)
    labels, counted = checked_labels("cross_entropy", target, classes, ignore_index, axis)
    shift = detached_max(input, axis)
    shifted = input - shift
    log = np.log(blocked_sum(np.exp(shifted), axis, True))
    loss = (1 - label_smoothing) * (log - take_label(shifted, labels, axis))
    weights = label_weights(weight, labels, counted, input, axis)
    loss *= weights
    if label_smoothing:
        spread = log - shifted
        spread *= 1 if weight is None else per_class(weight, input, axis)
        loss += counted * blocked_sum(spread, axis, True) * (label_smoothing / classes)
    loss = np.where(counted, loss, 0)
    out = _reduced(loss, weights, reduction, axis)
    saved = Saved(input=input, target=target, weight=weight, lse=log + shift)
    if reduction == "mean" and weight is not None:
        saved.out = out
    return out, saved


def _reduced(loss: Any, weights: Any, reduction: str, axis: int) -> Any:
    if reduction == "none":
        return loss.squeeze(axis)
    return blocked_sum(loss) / blocked_sum(weights) if reduction == "mean" else blocked_sum(loss)


@cross_entropy_.check
def cross_entropy_check(input, target, weight, ignore_index, reduction, label_smoothing):
    check_classes("cross_entropy", input, target, weight, reduction)
    _check_smoothing(label_smoothing)


@cross_entropy_.backward
def cross_entropy_backward(dy, saved, needs, ignore_index, reduction, label_smoothing):
    x, weight = saved.input, saved.weight
    axis, classes = class_axis(x)
    labels, counted = split_ignored(saved.target, ignore_index, axis)
    weights = label_weights(weight, labels, counted, x, axis)
    # 0 also where all labels are ignored and the mean is NaN
    grad = np.where(counted, label_grads(dy, reduction, weights, axis), 0)
    dx = dw = None
    if needs[0] is not None:
        at_label = (1 - label_smoothing) * weights * grad
        total = classes if weight is None else blocked_sum(weight)
        dx = x - saved.lse
        np.exp(dx, out=dx)
        dx *= at_label + grad * (label_smoothing / classes * total)
        np.put_along_axis(dx, labels, np.take_along_axis(dx, labels, axis) - at_label, axis)
        if label_smoothing:
            dx -= grad * (label_smoothing / classes) * (1 if weight is None else per_class(weight, x, axis))
    if needs[2] is not None:
        loss = (1 - label_smoothing) * (saved.lse - np.take_along_axis(x, labels, axis))
        loss = grad * (loss - saved.out if reduction == "mean" else loss)
        dw = np.where(one_hot(labels, classes, axis), loss, 0)
        if label_smoothing:
            dw = dw + grad * (saved.lse - x) * (label_smoothing / classes)
        dw = _sum_per_class(dw, axis)
    return dx, None, dw


def _sum_per_class(values: Any, axis: int) -> Any:
    return blocked_sum(values, tuple(i for i in range(values.ndim) if i != axis))


@op(cast=Cast.FP32, integers="refuse")
def cross_entropy_probabilities(
    input: Array, target: Array, weight: Array | None = None, reduction="mean", label_smoothing=0.0
):
    """`cross_entropy` for class probabilities; the mean divides by the number of distributions."""
    axis, classes = class_axis(input)
    log = apply(log_softmax, input, axis)
    smoothed = _smoothed(target, weight, label_smoothing, classes, axis)
    loss = -blocked_sum(smoothed * log, axis)
    if reduction == "none":
        out = loss / 1
    else:
        out = blocked_sum(loss) / (_distributions(input, axis) if reduction == "mean" else 1)
    return out, Saved(input=input, target=target, weight=weight)


@cross_entropy_probabilities.check
def cross_entropy_probabilities_check(input, target, weight, reduction, label_smoothing):
    where = "cross_entropy"
    check_reduction(where, reduction)
    if input.ndim < 1 or np.shape(target) != input.shape:
        needs = f"probabilities of the input's shape {tuple(input.shape)}"
        raise ShapeError(where, needs, f"{tuple(np.shape(target))}", INTEGERS)
    check_weight(where, input, weight)
    check_mean(where, input, reduction)
    _check_smoothing(label_smoothing)


@cross_entropy_probabilities.backward
def cross_entropy_probabilities_backward(dy, saved, needs, reduction, label_smoothing):
    x, target, weight = saved.input, saved.target, saved.weight
    axis, classes = class_axis(x)
    log = apply(log_softmax, x, axis)
    smoothed = _smoothed(target, weight, label_smoothing, classes, axis)
    grad = dy / (_distributions(x, axis) if reduction == "mean" else 1)
    grad = grad.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :]) if reduction == "none" else grad
    dx = grad * (np.exp(log) * blocked_sum(smoothed, axis, True) - smoothed) if needs[0] is not None else None
    scale = 1 if weight is None else per_class(weight, x, axis)
    dt = -grad * (1 - label_smoothing) * scale * log if needs[1] is not None else None
    if needs[2] is None:
        return dx, dt, None
    dw = -grad * _smoothed(target, None, label_smoothing, classes, axis) * log
    return dx, dt, _sum_per_class(dw, axis)


def _smoothed(target: Any, weight: Any, smoothing: float, classes: int, axis: int) -> Any:
    smoothed = target * (1 - smoothing) + smoothing / classes if smoothing else target
    return smoothed if weight is None else smoothed * per_class(weight, target, axis)


def _distributions(input: Any, axis: int) -> int:
    return math.prod(n for i, n in enumerate(input.shape) if i != axis)


@op(cast=Cast.FP32, integers="refuse")
def nll_loss(
    input: Array,
    target: Index,
    weight: Array | None = None,
    size_average: CompatArg = None,
    ignore_index: int = -100,
    reduce: CompatArg = None,
    reduction="mean",
):
    """The negative of the log-probability `input` at each label.

    input [C], [N, C] or [N, C, ...] log-probabilities; target without the axis of classes: labels from 0 to C - 1, or
    `ignore_index`; weight [C] -> the shape of labels, or []; the mean is weighted by `weight`. In float32 (float64 for
    float64 input). Raises as `cross_entropy` does.
    """
    axis, classes = class_axis(input)
    labels, counted = checked_labels("nll_loss", target, classes, ignore_index, axis)
    weights = label_weights(weight, labels, counted, input, axis)
    loss = np.where(counted, -weights * take_label(input, labels, axis), 0)
    out = _reduced(loss, weights, reduction, axis)
    return out, Saved(input=input, target=target, weight=weight, weights=weights)


@nll_loss.check
def nll_loss_check(input, target, weight, ignore_index, reduction):
    check_classes("nll_loss", input, target, weight, reduction)


@nll_loss.backward
def nll_loss_backward(dy, saved, needs, ignore_index, reduction):
    axis, classes = class_axis(saved.input)
    labels, counted = split_ignored(saved.target, ignore_index, axis)
    grad = np.where(counted, label_grads(dy, reduction, saved.weights, axis), 0)
    here = one_hot(labels, classes, axis)
    dx = np.where(here, -grad * saved.weights, 0) if needs[0] is not None else None
    if needs[2] is None:
        return dx, None, None
    loss = -np.take_along_axis(saved.input, labels, axis)
    mean = 0
    if reduction == "mean":
        mean = _reduced(np.where(counted, saved.weights * loss, 0), saved.weights, reduction, axis)
    return dx, None, _sum_per_class(np.where(here, grad * (loss - mean), 0), axis)


def _check_smoothing(smoothing: Any) -> None:
    if not 0 <= smoothing <= 1:
        raise ArgumentError("cross_entropy", "label_smoothing from 0 to 1", f"{smoothing}")

"""Cross entropy: over labels in one pass, over probabilities, and the negative log-likelihood of labels.

Classes are axis 1, or the only axis.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.dtypes import is_float
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_reduction
from ..nn.softmax import detached_max
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
    """Minus the log-probability that softmax of `input` gives to the target.

    input [C], [N, C] or [N, C, ...] logits; target without the axis of classes: labels from 0 to C - 1, or
    `ignore_index` for no loss and no gradient; or of the input's shape: probabilities; weight [C], of each class ->
    the shape of labels, or []. The mean over labels is weighted by `weight`; of a batch without a label that counts it
    is NaN. label_smoothing mixes the target with the uniform distribution (Szegedy et al. 2015, arXiv:1512.00567,
    sec. 7). Computed in float32 (float64 for float64 input).
    Raises ShapeError for shapes that do not fit and for a mean over nothing, RangeError for a label out of range, named
    with its position, DTypeError for labels that are no integers, ArgumentError for another reduction, a
    label_smoothing outside [0, 1], and an ignore_index from 0 beside probabilities.
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
    """`cross_entropy` for labels. What stays for backward is the logits and one number per label, not probabilities."""
    axis, classes = class_axis(input)
    labels, counts = checked_labels("cross_entropy", target, classes, ignore_index, axis)
    shift = detached_max(input, axis)
    shifted = input - shift
    log = np.log(blocked_sum(np.exp(shifted), axis, True))
    loss = (1 - label_smoothing) * (log - take_label(shifted, labels, axis))
    share = label_weights(weight, labels, counts, input, axis)
    loss *= share
    if label_smoothing:
        spread = log - shifted
        spread *= 1 if weight is None else per_class(weight, input, axis)
        loss += counts * blocked_sum(spread, axis, True) * (label_smoothing / classes)
    loss = np.where(counts, loss, 0)
    out = _reduced(loss, share, reduction, axis)
    saved = Saved(input=input, target=target, weight=weight, lse=log + shift)
    if reduction == "mean" and weight is not None:
        saved.out = out
    return out, saved


def _reduced(loss: Any, share: Any, reduction: str, axis: int) -> Any:
    if reduction == "none":
        return loss.squeeze(axis)
    return blocked_sum(loss) / blocked_sum(share) if reduction == "mean" else blocked_sum(loss)


@cross_entropy_.check
def cross_entropy_check(input, target, weight, ignore_index, reduction, label_smoothing):
    check_classes("cross_entropy", input, target, weight, reduction)
    _check_smoothing(label_smoothing)


@cross_entropy_.backward
def cross_entropy_backward(dy, saved, needs, ignore_index, reduction, label_smoothing):
    x, weight = saved.input, saved.weight
    axis, classes = class_axis(x)
    labels, counts = split_ignored(saved.target, ignore_index, axis)
    share = label_weights(weight, labels, counts, x, axis)
    slope = np.where(counts, label_grads(dy, reduction, share, axis), 0)  # also where all are ignored: the mean is NaN
    dx = dw = None
    if needs[0] is not None:
        hit = (1 - label_smoothing) * share * slope
        total = classes if weight is None else blocked_sum(weight)
        dx = x - saved.lse
        np.exp(dx, out=dx)
        dx *= hit + slope * (label_smoothing / classes * total)
        np.put_along_axis(dx, labels, np.take_along_axis(dx, labels, axis) - hit, axis)
        if label_smoothing:
            dx -= slope * (label_smoothing / classes) * (1 if weight is None else per_class(weight, x, axis))
    if needs[2] is not None:
        loss = (1 - label_smoothing) * (saved.lse - np.take_along_axis(x, labels, axis))
        loss = slope * (loss - saved.out if reduction == "mean" else loss)
        dw = np.where(one_hot(labels, classes, axis), loss, 0)
        if label_smoothing:
            dw = dw + slope * (saved.lse - x) * (label_smoothing / classes)
        dw = blocked_sum(dw, tuple(i for i in range(x.ndim) if i != axis))
    return dx, None, dw


@op(cast=Cast.FP32, integers="refuse")
def cross_entropy_probabilities(
    input: Array, target: Array, weight: Array | None = None, reduction="mean", label_smoothing=0.0
):
    """`cross_entropy` for class probabilities; the mean divides by the number of distributions."""
    axis, classes = class_axis(input)
    log = _log_softmax(input, axis)
    mixed = _mixed(target, weight, label_smoothing, classes, axis)
    loss = -blocked_sum(mixed * log, axis)
    out = loss / 1 if reduction == "none" else blocked_sum(loss) / (_others(input, axis) if reduction == "mean" else 1)
    return out, Saved(input=input, target=target, weight=weight)


@cross_entropy_probabilities.check
def cross_entropy_probabilities_check(input, target, weight, reduction, label_smoothing):
    where = "cross_entropy"
    check_reduction(where, reduction)
    if input.ndim < 1 or np.shape(target) != input.shape:
        raise ShapeError(
            where, f"probabilities of the input's shape {tuple(input.shape)}", f"{tuple(np.shape(target))}", INTEGERS
        )
    check_weight(where, input, weight)
    check_mean(where, input, reduction)
    _check_smoothing(label_smoothing)


@cross_entropy_probabilities.backward
def cross_entropy_probabilities_backward(dy, saved, needs, reduction, label_smoothing):
    x, target, weight = saved.input, saved.target, saved.weight
    axis, classes = class_axis(x)
    log = _log_softmax(x, axis)
    mixed = _mixed(target, weight, label_smoothing, classes, axis)
    slope = dy / (_others(x, axis) if reduction == "mean" else 1)
    slope = slope.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :]) if reduction == "none" else slope
    dx = slope * (np.exp(log) * blocked_sum(mixed, axis, True) - mixed) if needs[0] is not None else None
    scale = 1 if weight is None else per_class(weight, x, axis)
    dt = -slope * (1 - label_smoothing) * scale * log if needs[1] is not None else None
    if needs[2] is None:
        return dx, dt, None
    dw = -slope * _mixed(target, None, label_smoothing, classes, axis) * log
    return dx, dt, blocked_sum(dw, tuple(i for i in range(x.ndim) if i != axis))


def _log_softmax(input: Any, axis: int) -> Any:
    shifted = input - detached_max(input, axis)
    return shifted - np.log(blocked_sum(np.exp(shifted), axis, True))


def _mixed(target: Any, weight: Any, smoothing: float, classes: int, axis: int) -> Any:
    mixed = target * (1 - smoothing) + smoothing / classes if smoothing else target
    return mixed if weight is None else mixed * per_class(weight, target, axis)


def _others(input: Any, axis: int) -> int:
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
    """Minus the log-probability that `input` holds at each label.

    input [C], [N, C] or [N, C, ...] log-probabilities; target without the axis of classes: labels from 0 to C - 1, or
    `ignore_index`; weight [C] -> the shape of labels, or []; the mean is weighted by `weight`. In float32 (float64 for
    float64 input). Raises as `cross_entropy` does.
    """
    axis, classes = class_axis(input)
    labels, counts = checked_labels("nll_loss", target, classes, ignore_index, axis)
    share = label_weights(weight, labels, counts, input, axis)
    loss = np.where(counts, -share * take_label(input, labels, axis), 0)
    out = _reduced(loss, share, reduction, axis)
    return out, Saved(input=input, target=target, weight=weight, share=share)


@nll_loss.check
def nll_loss_check(input, target, weight, ignore_index, reduction):
    check_classes("nll_loss", input, target, weight, reduction)


@nll_loss.backward
def nll_loss_backward(dy, saved, needs, ignore_index, reduction):
    axis, classes = class_axis(saved.input)
    labels, counts = split_ignored(saved.target, ignore_index, axis)
    slope = np.where(counts, label_grads(dy, reduction, saved.share, axis), 0)
    here = one_hot(labels, classes, axis)
    dx = np.where(here, -slope * saved.share, 0) if needs[0] is not None else None
    if needs[2] is None:
        return dx, None, None
    loss = -np.take_along_axis(saved.input, labels, axis)
    mean = _reduced(np.where(counts, saved.share * loss, 0), saved.share, reduction, axis) if reduction == "mean" else 0
    others = tuple(i for i in range(saved.input.ndim) if i != axis)
    return dx, None, blocked_sum(np.where(here, slope * (loss - mean), 0), others)


def _check_smoothing(smoothing: Any) -> None:
    if not 0 <= smoothing <= 1:
        raise ArgumentError("cross_entropy", "label_smoothing from 0 to 1", f"{smoothing}")

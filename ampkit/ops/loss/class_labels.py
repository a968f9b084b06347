"""Class labels and class weights of losses: checks, one-hot masks, gathers.

Classes are axis 1, or the only axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import DTypeError, RangeError, ShapeError
from ampkit.core.autograd.traced_array import TracedArray, plain
from ampkit.core.blocked_sum import blocked_sum

from ..argument_checks import check_reduction

INTEGERS = "labels are integers: cast them with .long()"


def class_axis(input: Any) -> tuple[int, int]:
    """(the axis of classes, the number of classes)."""
    axis = 1 if input.ndim > 1 else 0
    return axis, input.shape[axis]


def checked_labels(where: str, target: Any, classes: int, ignore: int, axis: int) -> tuple[Any, Any]:
    """`split_ignored`, raising RangeError for a label that is not a class."""
    labels, counted = split_ignored(target, ignore, axis)
    if not isinstance(target, TracedArray):
        bad = (labels < 0) | (labels >= classes)
        backends.backend_of(target).raise_if(target, bad.reshape(target.shape), label_error(where, classes, ignore))
    return labels, counted


def label_error(where: str, classes: int, ignore: int) -> Callable[[Any, Any], None]:
    """A function (value, position) that raises RangeError for a label that is not a class."""

    def fail(value: Any, position: Any) -> None:
        needs = f"labels from 0 to {classes - 1} ({classes} classes) or ignore_index={ignore}"
        raise RangeError(where, needs, f"{value} at position {position}")

    return fail


def split_ignored(target: Any, ignore: int, axis: int) -> tuple[Any, Any]:
    """(labels with an axis of length 1 for the classes and 0 for ignored ones, mask of those not ignored)."""
    labels = np.expand_dims(plain(target), axis)
    counted = labels != ignore
    return np.where(counted, labels, 0), counted


def one_hot(labels: Any, classes: int, axis: int) -> Any:
    """Boolean one-hot of labels, whose `axis` has length 1."""
    row = np.arange(classes, like=labels)
    return labels == row.reshape(-1, *(1,) * (labels.ndim - axis - 1))


def take_label(values: Any, labels: Any, axis: int) -> Any:
    """The value at each label along `axis`; `values` may have length 1 on other axes."""
    if isinstance(values, TracedArray):
        return np.where(one_hot(labels, values.shape[axis], axis), values, 0).sum(axis, keepdims=True)
    return np.take_along_axis(values, labels, axis)


def per_class(weight: Any, input: Any, axis: int) -> Any:
    """A weight per class [C], reshaped to broadcast to `input`."""
    return weight.reshape(*(1,) * axis, -1, *(1,) * (input.ndim - axis - 1))


def label_weights(weight: Any, labels: Any, counted: Any, input: Any, axis: int) -> Any:
    """The class weight of each label; 0 for an ignored one."""
    if weight is None:
        return counted.astype(input.dtype)
    return np.where(counted, take_label(per_class(weight, input, axis), labels, axis), 0)


def label_grads(dy: Any, reduction: str, weights: Any, axis: int) -> Any:
    """The gradient of the loss of each label, given dy of the reduced loss."""
    if reduction == "none":
        return dy.reshape(weights.shape)
    return dy / blocked_sum(weights) if reduction == "mean" else dy


def check_classes(where: str, input: Any, target: Any, weight: Any, reduction: Any) -> None:
    """Raise DTypeError or ShapeError for labels or weights that do not fit input, ArgumentError for the reduction."""
    check_reduction(where, reduction)
    if target.dtype.kind not in "iu":
        raise DTypeError(where, "integer labels", target.dtype.name, INTEGERS)
    if input.ndim < 1 or target.shape != input.shape[:1][: input.ndim - 1] + input.shape[2:]:
        needs = "input [N, C, ...] with labels [N, ...], or [C] with one label"
        cure = "classes are axis 1: merge the others, input.reshape(-1, classes) and target.reshape(-1)"
        if target.shape == input.shape:
            cure = "of one-hot labels pass target.argmax(1)"
        raise ShapeError(where, needs, f"{tuple(input.shape)} and {tuple(target.shape)}", cure)
    if not class_axis(input)[1]:
        raise ShapeError(where, "at least one class", f"input of shape {tuple(input.shape)}")
    check_weight(where, input, weight)
    check_mean(where, target, reduction)


def check_weight(where: str, input: Any, weight: Any) -> None:
    """Raise ShapeError unless there is one weight per class."""
    classes = class_axis(input)[1]
    if weight is not None and tuple(np.shape(weight)) != (classes,):
        raise ShapeError(where, f"a weight for each of {classes} classes", f"shape {tuple(np.shape(weight))}")


def check_mean(where: str, over: Any, reduction: str) -> None:
    """Raise ShapeError for the mean of no elements."""
    if reduction != "sum" and reduction != "none" and not over.size:
        cure = 'skip empty batches, or use reduction="sum"'
        raise ShapeError(where, "at least one element for a mean", f"shape {tuple(over.shape)}", cure)

"""CPU kernels of cross_entropy with labels or probabilities (cross_entropy.cpp), and of nll_loss by gathers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import zeros
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import (
    FLOATS,
    MIN_ELEMENTS,
    MIN_FUSED,
    Function,
    HostArray,
    broadcast_to,
    empty,
    empty_like,
    int64_keys,
    need_view,
    rows_along,
    supported,
)
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.loss import register_label_loss
from ampkit.ops.loss.class_labels import checked_labels, class_axis, label_grads, label_weights, split_ignored
from ampkit.ops.loss.cross_entropy import cross_entropy_, cross_entropy_probabilities, nll_loss

_forward = Function("cross_entropy_forward", "aaaaaaif", ctypes.c_int64)
_backward = Function("cross_entropy_backward", "aaaaaaifi")
_of_probabilities = Function("cross_entropy_of_probabilities", "aaaaaaaf")


def _fits(input: HostArray, target: HostArray, weight: HostArray | None, *more: Any) -> bool:
    known = supported(input) and (weight is None or supported(weight))
    return known and rows_along(input, class_axis(input)[0]) is not None


def _rows(array: HostArray) -> HostArray | None:
    return rows_along(array, class_axis(array)[0])


def _reduced(losses: HostArray, over: Any, reduction: str, like: HostArray, dtype: DType) -> HostArray:
    # losses [rows] in the shape of the labels `like`, or their sum, divided by `over` for the mean
    if reduction == "none":
        return in_format(losses.reshape(like.shape), dtype)
    total = losses.sum(dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(total / over() if reduction == "mean" else total).astype(dtype)


def _cross_entropies(
    input: HostArray, target: HostArray, weight: HostArray | None, ignore_index: int, reduction: str,
    label_smoothing: float, dtype: DType,
) -> Any:  # fmt: skip
    (axis, classes), labels, totals = class_axis(input), _int64(target), np.empty(2)
    loss, lse = empty(labels.shape, float32), empty(labels.shape, float32)
    if _forward(loss, lse, totals, _rows(input), labels, weight, ignore_index, label_smoothing) >= 0:
        checked_labels("cross_entropy", target, classes, ignore_index, axis)  # raises
    if reduction == "none":
        out = in_format(loss.reshape(target.shape), dtype)
    else:
        out = np.asarray(totals[1 if reduction == "mean" else 0]).astype(dtype)
    return out, lse.reshape(*target.shape[:axis], 1, *target.shape[axis:]), None


def _int64(labels: HostArray) -> HostArray:
    return np.ascontiguousarray(int64_keys(labels)).reshape(-1)


def _back_fits(dy: Any, saved: Saved, dtype: DType) -> bool:
    return saved.input.size >= MIN_FUSED and _fits(saved.input, saved.target, saved.weight)


def _gradient(
    dy: HostArray, saved: Saved, dtype: DType, ignore_index: int, reduction: str, label_smoothing: float,
    buffer: HostArray | None,
) -> HostArray:  # fmt: skip
    x, mean = saved.input, reduction == "mean"
    if buffer is not None and (buffer.shape, buffer.strides, buffer.dtype) == (x.shape, x.strides, dtype):
        dx = buffer
    else:
        dx = empty_like(x, dtype)
    labels, grad = _int64(saved.target), in_format(dy, float32).reshape(-1)
    lse = saved.lse.reshape(-1)
    _backward(need_view(_rows(dx)), _rows(x), lse, labels, grad, saved.weight, ignore_index, label_smoothing, mean)
    return dx


register_label_loss("cpu", cross_entropy_, "lse", _cross_entropies, _gradient, _fits, _back_fits, MIN_FUSED, True)


def _label_grads(dy: HostArray, weight: Any, labels: Any, counted: Any, reduction: str, x: HostArray) -> Any:
    # (the gradient of the loss of each label, 0 for one that does not count; the weight of each label), float32
    weight, axis = None if weight is None else in_format(weight, float32), class_axis(x)[0]
    share = counted.astype(np.float32) if weight is None else label_weights(weight, labels, counted, x, axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = label_grads(in_format(dy, float32), reduction, share, axis)
    return np.where(counted, found, np.float32(0)), share


def _probabilities_fit(input: HostArray, target: HostArray, weight: HostArray | None, *more: Any) -> bool:
    return _fits(input, target, weight) and _fits(target, target, None)


@cross_entropy_probabilities.on("cpu", when=_probabilities_fit, min_elements=MIN_FUSED)
def cross_entropy_probabilities_cpu(
    input: HostArray, target: HostArray, weight: HostArray | None, reduction: str, label_smoothing: float,
    *, dtype: DType,
) -> Any:  # fmt: skip
    axis, classes = class_axis(input)
    count = input.size // classes
    loss, lse = empty((count,), float32), empty((count,), float32)
    _of_probabilities(None, loss, lse, _rows(input), _rows(target), weight, None, label_smoothing)
    like = np.broadcast_to(np.float32(0), input.shape[:axis] + input.shape[axis + 1 :])
    out = _reduced(loss, lambda: count, reduction, like, dtype)
    return out, Saved(input=input, target=target, weight=weight, lse=lse)


def _probabilities_back_fits(dy: Any, saved: Saved, needs: Any, reduction: str, label_smoothing: float) -> bool:
    known = bool(needs[0]) and not needs[1] and not needs[2] and hasattr(saved, "lse")
    return known and _probabilities_fit(saved.input, saved.target, saved.weight)


@cross_entropy_probabilities.on_backward("cpu", when=_probabilities_back_fits)
def cross_entropy_probabilities_backward_cpu(
    dy: HostArray, saved: Saved, needs: Any, reduction: str, label_smoothing: float
) -> Any:
    x, lse, dx = saved.input, saved.lse, empty_like(saved.input, needs[0])
    grad = in_format(dy, float32) / np.float32(lse.size if reduction == "mean" else 1)
    grad = broadcast_to(grad.reshape(-1), lse.shape)
    _of_probabilities(
        need_view(_rows(dx)), None, lse, _rows(x), _rows(saved.target), saved.weight, grad, label_smoothing
    )
    return dx, None, None


# nll_loss


def _nll_losses(
    input: HostArray, target: HostArray, weight: HostArray | None, ignore_index: int, reduction: str, dtype: DType
) -> Any:
    axis, classes = class_axis(input)
    labels, counted = checked_labels("nll_loss", target, classes, ignore_index, axis)
    weights = _label_grads(np.zeros((), np.float32), weight, labels, counted, "sum", input)[1]
    found = in_format(np.take_along_axis(input, labels, axis), float32)
    loss = np.where(counted, -weights * found, np.float32(0))
    out = _reduced(loss.reshape(-1), lambda: weights.sum(dtype=np.float64), reduction, target, dtype)
    return out, weights, None


def _nll_gradient(dy: HostArray, saved: Saved, dtype: DType, ignore_index: int, reduction: str) -> HostArray:
    x, axis = saved.input, class_axis(saved.input)[0]
    labels, counted = split_ignored(saved.target, ignore_index, axis)
    grad = _label_grads(dy, saved.weight, labels, counted, reduction, x)[0]
    dx = zeros(x.shape, dtype)
    np.put_along_axis(dx, labels, in_format(-grad * in_format(saved.weights, float32), dtype), axis)
    return dx


register_label_loss(
    "cpu", nll_loss, "weights", _nll_losses, _nll_gradient, lambda x, *more, **params: x.dtype in FLOATS,
    lambda dy, saved, dtype: supported(saved.input), MIN_ELEMENTS,
)  # fmt: skip

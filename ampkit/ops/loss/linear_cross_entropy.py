"""Cross entropy of a linear layer's outputs, in slices of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator, float16, float32, is_float
from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core import policy
from ampkit.core.arguments import shown
from ampkit.core.autograd.grad_mode import enable_grad, is_grad_enabled
from ampkit.core.autograd.recompute import recompute
from ampkit.core.autograd.saved_hooks import packing
from ampkit.core.casts import cast
from ampkit.core.dispatch import Sum
from ampkit.core.dispatch.batching.array import live_levels
from ampkit.core.tensor import Tensor

from ..argument_checks import check_reduction
from ..linalg.matmul import linear
from ..shape.join_split import cat
from .class_labels import check_mean, checked_labels
from .cross_entropy import cross_entropy
from .known_gradients import gradients_of, with_gradients

__all__ = ["linear_cross_entropy"]

_LOGITS = 1 << 23  # of a slice, at least: fewer would make products small


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    """`cross_entropy(linear(input, linear_weight, linear_bias), target, ...)` without keeping the logits.

    input [F] or [N, F]; linear_weight [C, F] or [C, ..., F], linear_bias [C] or [C, ...]; target [], [N] or [N, ...] of
    labels from 0 to C - 1, or [C], [N, C] or [N, C, ...] of probabilities; weight [C] per class -> the shape of labels,
    or []. ignore_index: the label without a loss, -100 if None. Dtypes are those of the two functions: logits in the
    16-bit dtype of an autocast region, the loss in float32 (float64 for float64 input).
    Rows are taken in slices of at most F rows, or of 2^23 logits if that is more, so that a slice's logits take no more
    memory than the gradient of the weights does. With labels and a sum or mean, the gradients are computed slice by
    slice with the loss, in the memory of the logits, and backward multiplies them by the loss's own gradient. Else
    backward computes the logits of each slice again, a third more products. options: PyTorch's
    LinearCrossEntropyOptions, which say how to slice there and have no effect here.
    Raises ShapeError for shapes that do not fit and for the mean of no rows, RangeError for a label out of range, named
    with its position, ArgumentError for an unknown reduction, a label_smoothing outside [0, 1] and an ignore_index >= 0
    with probabilities, DTypeError for other options.
    Wijmans et al. 2024, arXiv:2411.09009, without its kernels; Hsu et al. 2024, arXiv:2410.10989.
    """
    where = "linear_cross_entropy"
    check_reduction(where, reduction)
    if options is not None and type(options).__name__ != "LinearCrossEntropyOptions":
        raise DTypeError(where, "options as None or LinearCrossEntropyOptions", shown(options))
    _check_shapes(where, input, linear_weight, target, linear_bias)
    check_mean(where, target.array, reduction)
    classes, rest = linear_weight.shape[0], linear_weight.shape[1:-1]
    batched, labels = input.ndim == 2, not is_float(target.dtype.dtype)
    ignored = -100 if ignore_index is None else ignore_index
    if labels:
        checked_labels(where, target.array, classes, ignored, int(batched))
    flat_weight = linear_weight if not rest else linear_weight.reshape(-1, linear_weight.shape[-1])
    flat_bias = linear_bias if linear_bias is None or not rest else linear_bias.reshape(-1)

    def loss_of(logits: Tensor, of: Tensor, per_class: Tensor | None) -> Tensor:
        logits = logits.reshape(*of.shape[:1], classes, *rest) if rest else logits
        kept = "none" if reduction == "none" else "sum"
        return cross_entropy(
            logits, of, per_class, ignore_index=ignored, reduction=kept, label_smoothing=label_smoothing
        )

    def losses(rows: Tensor, by: Tensor, bias: Tensor | None, of: Tensor, per_class: Tensor | None) -> Tensor:
        return loss_of(linear(rows, by, bias), of, per_class)

    given = flat_weight, flat_bias
    most = max(1, input.shape[-1] // max(1, prod(rest)), _LOGITS // max(1, classes * prod(rest)))
    if not batched or input.shape[0] <= most:
        parts = [losses(input, *given, target, weight)]
    elif labels and not rest and reduction != "none" and _computes_gradients((input, *given), weight):
        parts = [_sum_with_gradients(loss_of, losses, most, (input, *given), target, weight)]
    else:
        slices = _slices(input.shape[0], most)
        parts = [recompute(losses, input[part], *given, target[part], weight) for part in slices]
    if reduction == "none":
        return parts[0] if len(parts) == 1 else cat(parts)
    total = sum(parts[1:], parts[0])
    if reduction == "sum":
        return total
    if not labels:
        return total / (target.numel() // classes)
    counted = target != ignored
    some = counted.any()  # else the mean is NaN, and has no gradient
    return (total / _weights(total, target, counted, weight).where(some, 1)).where(some, float("nan"))


def _slices(rows: int, most: int) -> list[slice]:
    # Of about equal lengths; multiples of 32, of which tiles of products are made, where that is little.
    length = -(-rows // -(-rows // most))
    length = min(most, -(-length // 32) * 32) if length > 128 else length
    return [slice(i, min(i + length, rows)) for i in range(0, rows, length)]


def _computes_gradients(inputs: Sequence[Tensor | None], weight: Tensor | None) -> bool:
    # Whether gradients are computed with the loss: not those of class weights, nor batched, packed or quantized ones.
    wanted = is_grad_enabled() and any(each is not None and each.requires_grad for each in inputs)
    if not wanted or packing or live_levels or (weight is not None and weight.requires_grad):
        return False
    region = policy.region()
    return region is None or all(each.recipe is None for each in region.active)


def _sum_with_gradients(
    loss_of: Callable[..., Tensor], losses: Callable[..., Tensor], most: int, inputs: Sequence[Tensor | None],
    target: Tensor, weight: Tensor | None,
) -> Tensor:  # fmt: skip
    # losses(*inputs, target, weight) as the sum over slices, with its gradients.
    input, of, bias = inputs
    assert input is not None
    total: Any = None
    factor, needs, sums = None, (), [None] * 3
    for part in _slices(input.shape[0], most):
        loss, gradients, factor, needs = _loss_and_gradients(loss_of, input[part], of, bias, target[part], weight, sums)
        if total is None:
            total = loss
        else:
            total += loss
        _add(sums, gradients, part, input)
    return with_gradients(total, sums, factor, needs, lambda *each: losses(*each, target, weight), inputs)


def _loss_and_gradients(
    loss_of: Callable[..., Tensor], rows: Tensor, of: Any, bias: Tensor | None, target: Tensor, weight: Tensor | None,
    sums: Sequence[Any],
) -> Any:  # fmt: skip
    # Of a slice: the loss, the gradients of `factor` times it, that factor, and the dtypes in which linear wants them.
    # The gradient of the logits takes their memory. With the factor, float16 holds small ones.
    with enable_grad():
        logits = linear(rows, of, bias)
        loss = loss_of(logits, target, weight)
    of_loss, of_logits, array = loss.node, logits.node, logits.array
    factor, needs = _factor(array, weight), of_logits.op.needs(of_logits)
    seed = backends.backend_of(loss.array).zeros(loss.shape, loss.array.dtype)
    seed[...] = factor
    (dy, *_) = gradients_of(of_loss, seed, (array.dtype, None, None), (array,))
    wide = tuple([None if need is None else accumulator(need) for need in needs])
    found = gradients_of(of_logits, dy, wide, (None, _room(sums[1], of, wide[1]), None))
    return loss.array, found, factor, needs


def _factor(logits: Any, weight: Tensor | None) -> Any:
    # The largest power of two, up to 2^15, with which no gradient of float16 logits overflows: they are at most the
    # largest class weight. Other dtypes hold what float32 holds.
    if logits.dtype != float16:
        return 1.0
    if weight is None:
        return float(1 << 15)
    largest = np.maximum(abs(cast(weight.array, float32)).max(), 1)
    return np.exp2(15 - np.ceil(np.log2(largest)))


def _room(total: Any, weight: Tensor, dtype: Any) -> Any:
    # Where the gradient of the weights goes: new memory at first, which the next ones are added to.
    if dtype is None:
        return None
    if total is None:
        return backends.backend_of(weight.array).empty(weight.shape, dtype)
    return Sum(total) if type(total) is np.ndarray else None


def _add(sums: list[Any], gradients: Sequence[Any], part: slice, input: Tensor) -> None:
    # The gradients of the rows of a slice, and those of the weights and the bias added.
    for i, gradient in enumerate(gradients):
        if i == 0 and gradient is not None:
            if sums[0] is None:
                sums[0] = backends.backend_of(gradient).empty(input.shape, gradient.dtype)
            sums[0][part] = gradient
        elif sums[i] is None:
            sums[i] = gradient
        elif gradient is not sums[i]:
            sums[i] += gradient


def _weights(total: Tensor, target: Tensor, counted: Tensor, weight: Tensor | None) -> Tensor:
    # The sum of the weights of the labels that count.
    if weight is None:
        return counted.sum().to(total.dtype)
    return (weight.to(total.dtype)[target.where(counted, 0)] * counted).sum()


def _check_shapes(where: str, input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None) -> None:
    if input.ndim not in (1, 2) or linear_weight.ndim < 2 or (input.ndim == 1 and linear_weight.ndim > 2):
        got = f"{tuple(input.shape)} and {tuple(linear_weight.shape)}"
        raise ShapeError(where, "input [N, F] and linear_weight [C, ..., F], or [F] and [C, F]", got)
    if input.shape[-1] != linear_weight.shape[-1]:
        needs = f"linear_weight of {input.shape[-1]} features, as input has"
        raise ShapeError(where, needs, f"{linear_weight.shape[-1]}")
    if linear_bias is not None and linear_bias.shape != linear_weight.shape[:-1]:
        needs = f"linear_bias of shape {tuple(linear_weight.shape[:-1])}"
        raise ShapeError(where, needs, f"{tuple(linear_bias.shape)}")
    rows, (classes, *rest) = input.shape[:-1], linear_weight.shape[:-1]
    wanted = (*rows, classes, *rest) if is_float(target.dtype.dtype) else (*rows, *rest)
    if tuple(target.shape) != wanted:
        raise ShapeError(where, f"target of shape {wanted}", f"{tuple(target.shape)}")

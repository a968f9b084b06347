"""Cross entropy of a linear layer's outputs, in slices of rows, whose logits backward computes again."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.base.dtypes import is_float
from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core.arguments import shown
from ampkit.core.autograd.recompute import recompute
from ampkit.core.tensor import Tensor

from ..argument_checks import check_reduction
from ..linalg.matmul import linear
from ..shape.join_split import cat
from .class_labels import checked_labels
from .cross_entropy import cross_entropy

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
    Rows are taken in slices of F rows, or of 2^23 logits if that is more, so that a slice's logits take no more memory
    than its gradient of the weights does. Backward computes the logits of each slice again, a third more products, and
    adds up the gradients of the weights. options: PyTorch's LinearCrossEntropyOptions, which say how to slice there and
    have no effect here.
    Raises ShapeError for shapes that do not fit, RangeError for a label out of range, named with its position,
    ArgumentError for an unknown reduction, a label_smoothing outside [0, 1] and an ignore_index >= 0 with
    probabilities, DTypeError for other options.
    Wijmans et al. 2024, arXiv:2411.09009, without its kernels.
    """
    where = "linear_cross_entropy"
    check_reduction(where, reduction)
    if options is not None and type(options).__name__ != "LinearCrossEntropyOptions":
        raise DTypeError(where, "options as None or LinearCrossEntropyOptions", shown(options))
    _check_shapes(where, input, linear_weight, target, linear_bias)
    classes, rest = linear_weight.shape[0], linear_weight.shape[1:-1]
    batched, labels = input.ndim == 2, not is_float(target.dtype.dtype)
    ignored = -100 if ignore_index is None else ignore_index
    if labels:
        checked_labels(where, target.array, classes, ignored, int(batched))
    flat_weight = linear_weight.reshape(-1, linear_weight.shape[-1])
    flat_bias = None if linear_bias is None else linear_bias.reshape(-1)

    def losses(rows: Tensor, of: Tensor, by: Tensor, bias: Tensor | None, per_class: Tensor | None) -> Tensor:
        logits = linear(rows, by, bias)
        logits = logits.reshape(*rows.shape[:-1], classes, *rest)
        kept = "none" if reduction == "none" else "sum"
        return cross_entropy(
            logits, of, per_class, ignore_index=ignored, reduction=kept, label_smoothing=label_smoothing
        )

    given = flat_weight, flat_bias, weight
    step = max(1, input.shape[-1] // max(1, prod(rest)), _LOGITS // max(1, classes * prod(rest)))
    if not batched or input.shape[0] <= step:
        parts = [losses(input, target, *given)]
    else:
        starts = range(0, input.shape[0], step)
        parts = [recompute(losses, input[i : i + step], target[i : i + step], *given) for i in starts]
    if reduction == "none":
        return parts[0] if len(parts) == 1 else cat(parts)
    total = sum(parts[1:], parts[0])
    return total / _divisor(total, target, weight, ignored, labels, classes) if reduction == "mean" else total


def _divisor(total: Tensor, target: Tensor, weight: Tensor | None, ignored: int, labels: bool, classes: int) -> Any:
    # What a mean divides by: the weights of the labels that count, or the number of distributions.
    if not labels:
        return target.numel() // classes
    counted = target != ignored
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

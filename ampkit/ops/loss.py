"""Losses that compare a prediction with a target of its shape; those over classes come from `crossentropy.py`.

`reduction` is everywhere "none", "mean" or "sum"; size_average and reduce say the same in the words that PyTorch had
before, and win over it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backends
from ..core.errors import ArgumentError, RangeError, ShapeError
from ..core.op import Array, Saved, op
from ..core.policy import Cast
from ..core.replay import Taped, plain
from ..core.words import Word
from .crossentropy import check_mean, cross_entropy, nll_loss
from .masks import sign
from .sums import REDUCTIONS, check_reduction

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
]


def reduced(loss: Any, reduction: str) -> Any:
    """`loss` as it is, its mean, its sum, or its sum over the length of the first axis ("batchmean")."""
    if reduction == "none":
        return loss
    if reduction == "batchmean":
        return loss.sum() / len(loss)
    return loss.mean() if reduction == "mean" else loss.sum()


def _slope(dy: Any, reduction: str, input: Any) -> Any:
    # What reaches each element of the loss before its reduction.
    if reduction == "batchmean":
        return dy / len(input)
    return dy / input.size if reduction == "mean" else dy


def _pair(slope: Any, needs: Any) -> tuple[Any, Any]:
    # The gradients of input and target, for a loss of their difference.
    return slope if needs[0] is not None else None, -slope if needs[1] is not None else None


def _check_pair(where: str, input: Any, target: Any, reduction: Any, allowed: tuple[str, ...] = REDUCTIONS) -> None:
    check_reduction(where, reduction, allowed)
    if np.shape(input) != np.shape(target):
        cure = "reshape one, so that no element is compared with another's"
        raise ShapeError(
            where, f"a target of the input's shape {tuple(np.shape(input))}", f"{tuple(np.shape(target))}", cure
        )
    check_mean(where, input, reduction)


@op(cast=Cast.FP32, integers="float")
def mse_loss(
    input: Array, target: Array, size_average: Word = None, reduce: Word = None, reduction="mean", weight: Word = None
):
    """(input - target)^2.

    input [...], target [...] -> [...] or []. Computed in float32 (float64 for float64 input).
    Raises ShapeError for shapes that differ and for a mean over nothing, ArgumentError for an unknown reduction.
    """
    gap = input - target
    gap *= gap
    return reduced(gap, reduction), Saved(input=input, target=target)


@mse_loss.check
def mse_loss_check(input, target, reduction):
    _check_pair("mse_loss", input, target, reduction)


@mse_loss.backward
def mse_loss_backward(dy, saved, needs, reduction):
    gap = saved.input - saved.target
    gap *= 2 * _slope(dy, reduction, gap)
    return _pair(gap, needs)


@op(cast=Cast.FP32, integers="float")
def l1_loss(
    input: Array, target: Array, size_average: Word = None, reduce: Word = None, reduction="mean", weight: Word = None
):
    """|input - target|, with slope 0 where they are equal.

    input [...], target [...] -> [...] or []. Computed in float32 (float64 for float64 input).
    Raises ShapeError for shapes that differ and for a mean over nothing, ArgumentError for an unknown reduction.
    """
    return reduced(abs(input - target), reduction), Saved(input=input, target=target)


@l1_loss.check
def l1_loss_check(input, target, reduction):
    _check_pair("l1_loss", input, target, reduction)


@l1_loss.backward
def l1_loss_backward(dy, saved, needs, reduction):
    gap = saved.input - saved.target
    return _pair(sign(plain(gap)) * _slope(dy, reduction, gap), needs)


@op(cast=Cast.FP32, integers="float")
def smooth_l1_loss(
    input: Array, target: Array, size_average: Word = None, reduce: Word = None, reduction="mean", beta=1.0
):
    """d^2 / (2 beta) for |d| < beta, else |d| - beta / 2, with d = input - target.

    input [...], target [...] -> [...] or []. Computed in float32 (float64 for float64 input).
    Raises ShapeError for shapes that differ and for a mean over nothing, ArgumentError for an unknown reduction or a
    negative beta. Girshick 2015, arXiv:1504.08083, eq. 3 (beta 1).
    """
    gap = abs(input - target)
    loss = gap if beta == 0 else np.where(gap < beta, gap * gap * (0.5 / beta), gap - 0.5 * beta)
    return reduced(loss, reduction), Saved(input=input, target=target)


@smooth_l1_loss.check
def smooth_l1_loss_check(input, target, reduction, beta):
    _check_pair("smooth_l1_loss", input, target, reduction)
    if not beta >= 0:
        raise ArgumentError("smooth_l1_loss", "a beta of 0 or more", f"{beta}")


@smooth_l1_loss.backward
def smooth_l1_loss_backward(dy, saved, needs, reduction, beta):
    gap = saved.input - saved.target
    bend = np.sign(gap) if beta == 0 else np.where(abs(gap) < beta, gap / beta, np.sign(gap))
    return _pair(bend * _slope(dy, reduction, gap), needs)


@op(cast=Cast.FP32, integers="float")
def huber_loss(input: Array, target: Array, reduction="mean", delta=1.0, weight: Word = None):
    """d^2 / 2 for |d| < delta, else delta (|d| - delta / 2), with d = input - target.

    input [...], target [...] -> [...] or []. Computed in float32 (float64 for float64 input).
    Raises ShapeError for shapes that differ and for a mean over nothing, ArgumentError for an unknown reduction or a
    delta that is not positive. Huber 1964, Annals of Mathematical Statistics 35.
    """
    gap = abs(input - target)
    loss = np.where(gap < delta, 0.5 * gap * gap, delta * (gap - 0.5 * delta))
    return reduced(loss, reduction), Saved(input=input, target=target)


@huber_loss.check
def huber_loss_check(input, target, reduction, delta):
    _check_pair("huber_loss", input, target, reduction)
    if not delta > 0:
        raise ArgumentError("huber_loss", "a positive delta", f"{delta}")


@huber_loss.backward
def huber_loss_backward(dy, saved, needs, reduction, delta):
    gap = saved.input - saved.target
    bend = np.where(abs(gap) < delta, gap, delta * np.sign(gap))
    return _pair(bend * _slope(dy, reduction, gap), needs)


@op(cast=Cast.FP32, integers="float")
def binary_cross_entropy_with_logits(
    input: Array,
    target: Array,
    weight: Array | None = None,
    size_average: Word = None,
    reduce: Word = None,
    reduction="mean",
    pos_weight: Array | None = None,
):
    """The cross entropy of sigmoid(input) against probabilities, without leaving the logarithm: finite for every logit.

    input [...], target [...] in [0, 1]; weight, pos_weight broadcast to them -> [...] or []. The loss is
    weight * (pos_weight * target * log(1 + exp(-x)) + (1 - target) * log(1 + exp(x))). Computed in float32 (float64
    for float64 input). Raises ShapeError for shapes that differ and for a mean over nothing, ArgumentError for an
    unknown reduction.
    """
    loss = (1 - target) * input + _lift(target, pos_weight) * _softplus(-input)
    if weight is not None:
        loss *= weight
    return reduced(loss, reduction), Saved(input=input, target=target, weight=weight, pos_weight=pos_weight)


@binary_cross_entropy_with_logits.check
def bce_with_logits_check(input, target, weight, reduction, pos_weight):
    _check_pair("binary_cross_entropy_with_logits", input, target, reduction)
    _check_broadcast("binary_cross_entropy_with_logits", input, weight=weight, pos_weight=pos_weight)


@binary_cross_entropy_with_logits.backward
def bce_with_logits_backward(dy, saved, needs, reduction):
    x, t, weight, pos_weight = saved.input, saved.target, saved.weight, saved.pos_weight
    slope = _slope(dy, reduction, x)
    weighted = slope if weight is None else slope * weight
    dx = weighted * ((1 - t) - _lift(t, pos_weight) / (1 + np.exp(x))) if needs[0] is not None else None
    if not any(n is not None for n in needs[1:]):
        return dx, None, None, None
    log = _softplus(-x)
    dt = weighted * ((0 if pos_weight is None else (pos_weight - 1) * log) - x) if needs[1] is not None else None
    dw = slope * ((1 - t) * x + _lift(t, pos_weight) * log) if needs[2] is not None else None
    return dx, dt, dw, weighted * t * log if needs[3] is not None else None


def _lift(target: Any, pos_weight: Any) -> Any:
    return 1 if pos_weight is None else 1 + (pos_weight - 1) * target


def _softplus(x: Any) -> Any:
    return np.log1p(np.exp(-abs(x))) + np.maximum(x, 0)


def _check_broadcast(where: str, input: Any, **scales: Any) -> None:
    for name, scale in scales.items():
        shape, room = np.shape(scale) if scale is not None else (), np.shape(input)
        if len(shape) > len(room) or any(n not in (1, m) for n, m in zip(shape[::-1], room[::-1], strict=False)):
            raise ShapeError(where, f"{name} that broadcasts to {tuple(room)}", f"{tuple(shape)}")


@op(
    cast=Cast.BANNED,
    integers="float",
    cure="use binary_cross_entropy_with_logits on the logits: sigmoid in 16 bits loses them",
)
def binary_cross_entropy(
    input: Array,
    target: Array,
    weight: Array | None = None,
    size_average: Word = None,
    reduce: Word = None,
    reduction="mean",
):
    """The cross entropy of probabilities against probabilities; each logarithm is at least -100.

    input [...] in [0, 1], target [...]; weight broadcasts to them -> [...] or []. Computed in float32 (float64 for
    float64 input); refused inside autocast. Raises ShapeError for shapes that differ and for a mean over nothing,
    ArgumentError for an unknown reduction, RangeError for an input outside [0, 1], named with its position.
    """
    _in_unit(input)
    loss = (target - 1) * _log(1 - input) - target * _log(input)
    if weight is not None:
        loss *= weight
    return reduced(loss, reduction), Saved(input=input, target=target, weight=weight)


@binary_cross_entropy.check
def binary_cross_entropy_check(input, target, weight, reduction):
    _check_pair("binary_cross_entropy", input, target, reduction)
    _check_broadcast("binary_cross_entropy", input, weight=weight)


@binary_cross_entropy.backward
def binary_cross_entropy_backward(dy, saved, needs, reduction):
    x, t, weight = saved.input, saved.target, saved.weight
    slope = _slope(dy, reduction, x)
    weighted = slope if weight is None else slope * weight
    # 1e-12 bounds the slope at 0 and 1, where that of the bounded logarithm would be 0 and the element never learn.
    dx = weighted * (x - t) / np.maximum(x * (1 - x), 1e-12) if needs[0] is not None else None
    dt = weighted * (_log(1 - x) - _log(x)) if needs[1] is not None else None
    return dx, dt, slope * ((t - 1) * _log(1 - x) - t * _log(x)) if needs[2] is not None else None


def _log(x: Any) -> Any:
    return np.maximum(np.log(x), -100)


def _in_unit(input: Any) -> None:
    def fail(value: float, position: Any) -> None:
        cure = "pass probabilities, or logits to binary_cross_entropy_with_logits"
        raise RangeError("binary_cross_entropy", "inputs from 0 to 1", f"{value} at position {position}", cure)

    if not isinstance(input, Taped):
        backends.of(input).inspect(input, (input < 0) | (input > 1), fail)


@op(cast=Cast.FP32, integers="float")
def kl_div(
    input: Array, target: Array, size_average: Word = None, reduce: Word = None, reduction="mean", log_target=False
):
    """target * (log(target) - input): the Kullback-Leibler divergence of `input`, log-probabilities, from `target`.

    input [...], target [...], probabilities or their logarithms with `log_target` -> [...] or []. "batchmean" divides
    the sum by the length of the first axis, "mean" by the number of elements. Computed in float32 (float64 for float64
    input). Raises ShapeError for shapes that differ and for a mean over nothing, ArgumentError for an unknown
    reduction.
    """
    weight, log = (np.exp(target), target) if log_target else (target, np.log(np.where(target == 0, 1, target)))
    return reduced(weight * (log - input), reduction), Saved(input=input, target=target)


@kl_div.check
def kl_div_check(input, target, reduction, log_target):
    _check_pair("kl_div", input, target, reduction, (*REDUCTIONS, "batchmean"))


@kl_div.backward
def kl_div_backward(dy, saved, needs, reduction, log_target):
    x, t = saved.input, saved.target
    slope = _slope(dy, reduction, x)
    weight = np.exp(t) if log_target else t
    dx = -slope * weight if needs[0] is not None else None
    if needs[1] is None:
        return dx, None
    return dx, slope * (weight * (t - x + 1) if log_target else np.log(np.where(t == 0, 1, t)) + 1 - x)

"""CUDA kernels of the binary cross entropies; the references compute the gradients of their weights."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch import elementwise
from ampkit.base.dtypes import DType, bool_
from ampkit.core.autograd.saved import Saved
from ampkit.ops.loss import bce as ops

from ..pointwise.registration import supports, supports_backward
from . import elementwise_loss

Array = Any


def _supports_backward(dy: Array, saved: Any, needs: Any, **params: Any) -> bool:
    return supports_backward(dy, saved, needs) and not any(need is not None for need in needs[2:])


def _or_1(weight: Any) -> Any:
    return 1.0 if weight is None else weight


@ops.binary_cross_entropy_with_logits.on("cuda", when=supports)
def bce_with_logits_cuda(
    input: Array, target: Array, weight: Any, reduction: str, pos_weight: Any, *, dtype: DType
) -> Any:
    operands = input, target, _or_1(weight), _or_1(pos_weight)
    out = elementwise_loss.forward("BCEOfLogits", operands, reduction, dtype)
    saved = Saved(input=input, target=target, weight=weight, pos_weight=pos_weight)
    return out if out is NotImplemented else (out, saved)


@ops.binary_cross_entropy_with_logits.on_backward("cuda", when=_supports_backward)
def bce_with_logits_backward_cuda(dy: Array, saved: Any, needs: Any, reduction: str) -> Any:
    operands = saved.input, saved.target, _or_1(saved.pos_weight)
    grads = elementwise_loss.backward("BCEOfLogits", dy, operands, needs[:2], reduction, saved.weight)
    return grads if grads is NotImplemented else (*grads, None, None)


@ops.binary_cross_entropy.on("cuda", when=supports)
def binary_cross_entropy_cuda(input: Array, target: Array, weight: Any, reduction: str, *, dtype: DType) -> Any:
    outside = elementwise.forward("OutsideUnit", (input,), bool_)
    out = elementwise_loss.forward("BCELoss", (input, target, _or_1(weight)), reduction, dtype)
    if outside is NotImplemented or out is NotImplemented:
        return NotImplemented
    ops.check_unit_interval(input, outside)
    return out, Saved(input=input, target=target, weight=weight)


@ops.binary_cross_entropy.on_backward("cuda", when=_supports_backward)
def binary_cross_entropy_backward_cuda(dy: Array, saved: Any, needs: Any, reduction: str) -> Any:
    grads = elementwise_loss.backward("BCELoss", dy, (saved.input, saved.target), needs[:2], reduction, saved.weight)
    return grads if grads is NotImplemented else (*grads, None)

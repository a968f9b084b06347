"""Piecewise linear activations: ReLU, PReLU, hardtanh, shrinkage, threshold.

`inplace=True` writes the result into input.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.casts import to_accumulator
from ampkit.core.op import Array, Bound, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import integer_factor
from .selection import select_or_zero

__all__ = [
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "prelu", "relu", "relu6", "softshrink",
    "threshold",
]  # fmt: skip


@op(cast=Cast.KEEP, moves=True)
def relu(input: Array, inplace: CompatArg = False):
    """max(input, 0); the derivative at 0 is 0, NaN propagates (Nair & Hinton 2010, ICML)."""
    out = select_or_zero(input, np.logical_not(input <= 0))
    return out, Saved(out=out)


@relu.backward
def relu_backward(dy, saved, needs):
    # Where `out` is not 0 it is positive or NaN, and 16-bit compares are slow.
    return select_or_zero(dy, plain(saved.out).astype(bool))


@op(cast=Cast.KEEP, integers="refuse")
def leaky_relu(input: Array, negative_slope=0.01, inplace: CompatArg = False):
    """input where positive, else negative_slope * input (Maas et al. 2013, ICML)."""
    return _leaky(input, input, negative_slope), Saved(input=input)


@leaky_relu.backward
def leaky_relu_backward(dy, saved, needs, negative_slope):
    return _leaky(dy, plain(saved.input), negative_slope)


def _leaky(values: Any, x: Any, negative_slope: float) -> Any:
    return np.where(x > 0, values, values * negative_slope)


@op(cast=Cast.KEEP, integers="refuse")
def hardsigmoid(input: Array, inplace: CompatArg = False):
    """(input + 3) / 6 clamped to [0, 1] (Courbariaux et al. 2015, arXiv:1511.00363, with PyTorch's constants)."""
    return np.minimum(np.maximum(input + 3, 0), 6) / 6, Saved(input=input)


@hardsigmoid.backward
def hardsigmoid_backward(dy, saved, needs):
    return dy * _in_linear_part(saved.input).astype(dy.dtype) / 6


@op(cast=Cast.KEEP, integers="refuse")
def hardswish(input: Array, inplace: CompatArg = False):
    """input * hardsigmoid(input) (Howard et al. 2019, arXiv:1905.02244, sec. 5.2)."""
    return input * np.minimum(np.maximum(input + 3, 0), 6) / 6, Saved(input=input)


@hardswish.backward
def hardswish_backward(dy, saved, needs):
    x = saved.input
    return dy * np.where(_in_linear_part(x), x / 3 + 0.5, (plain(x) > 0).astype(x.dtype))


def _in_linear_part(x: Any) -> Any:
    return np.abs(plain(x)) < 3


@op(cast=Cast.KEEP, moves=True)
def hardshrink(input: Array, lambd: Bound = 0.5):
    """input where |input| > lambd, else 0; NaN propagates."""
    return np.where(np.abs(input) <= lambd, 0, input), Saved(input=input)


def hardshrink_backward(dy, saved, needs, lambd):
    return np.where(np.abs(plain(saved.input)) <= lambd, 0, dy)


hardshrink.backward(hardshrink_backward)


@op(cast=Cast.KEEP, integers="refuse")
def softshrink(input: Array, lambd=0.5):
    """input moved towards 0 by lambd, but not past 0; NaN propagates.

    Raises ArgumentError for a negative lambd.
    """
    moved = input - lambd * np.sign(input)
    return np.where(np.abs(input) <= lambd, 0, moved), Saved(input=input)


@softshrink.check
def softshrink_check(input, lambd):
    if not lambd >= 0:
        raise ArgumentError("softshrink", "lambd from 0", f"{lambd}")


softshrink.backward(hardshrink_backward)


@op(cast=Cast.KEEP)
def threshold(input: Array, threshold: float, value: float, inplace: CompatArg = False):
    """input where it is above `threshold`, else the number `value`, an integer for integer input.

    16-bit elements are compared in float32, as in PyTorch.
    """
    value = integer_factor("threshold", "value", value, input)
    return np.where(_is_below(plain(input), threshold), value, input), Saved(input=input)


def _is_below(input: Array, threshold: float) -> Any:
    return (to_accumulator(input) if dtypes.is_float(input.dtype) else input) <= threshold


@threshold.backward
def threshold_backward(dy, saved, needs, threshold, value):
    return np.where(_is_below(plain(saved.input), threshold), 0, dy)


# with a parameter, or half of the input


@op(cast=Cast.LOW)
def prelu(input: Array, weight: Array):
    """input where positive, else weight * input: weight [1], or [C] for input [N, C, ...]; or [] for one weight in all.

    Raises ShapeError for a weight of another length. He et al. 2015, arXiv:1502.01852, eq. 1.
    """
    out = np.where(input > 0, input, _per_channel(weight, input) * input)
    return out, Saved(input=input, weight=weight, shape=weight.shape)


@prelu.check
def prelu_check(input, weight):
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or weight.size not in (1, channels):
        raise ShapeError("prelu", f"weight [1] or [{channels}], one per channel", f"shape {tuple(weight.shape)}")


@prelu.backward(weight="input")
def prelu_backward(dy, saved, needs):
    x, below = saved.input, plain(saved.input) <= 0
    dx = np.where(below, dy * _per_channel(saved.weight, x), dy) if needs[0] is not None else None
    if needs[1] is None:
        return dx, None
    share = np.where(below, dy * x, 0)
    if math.prod(saved.shape) != 1:
        return dx, blocked_sum(share, tuple([i for i in range(x.ndim) if i != 1]))
    return dx, blocked_sum(share).reshape(saved.shape)


def _per_channel(weight: Any, input: Any) -> Any:
    return weight.reshape((1, -1, *(1,) * (input.ndim - 2))[: input.ndim] if input.ndim > 1 else (1,) * input.ndim)


@op(cast=Cast.KEEP, moves=True)
def hardtanh(input: Array, min_val: Bound = -1.0, max_val: Bound = 1.0, inplace: CompatArg = False):
    """input clamped to [min_val, max_val], in its dtype; the derivative is 0 at both bounds, 1 for NaN.

    Raises ArgumentError for a min_val above max_val.
    """
    low, high = min_val, max_val
    if not dtypes.is_float(input.dtype):
        if not low == low or not high == high:
            raise ArgumentError("hardtanh", "bounds other than NaN for integers", f"{low} and {high}")
        limits = np.iinfo(input.dtype)
        low, high = [sorted((limits.min, int(bound), limits.max))[1] for bound in (low, high)]
    return np.minimum(np.maximum(input, low), high), Saved(input=input)


@hardtanh.check
def hardtanh_check(input, min_val, max_val):
    if input.dtype == dtypes.bool_:
        raise DTypeError("hardtanh", "numbers", "bool", "cast it: x.float()")
    if min_val > max_val:
        raise ArgumentError("hardtanh", "min_val up to max_val", f"{min_val} and {max_val}")


@hardtanh.backward
def hardtanh_backward(dy, saved, needs, min_val, max_val):
    x = plain(saved.input)
    return select_or_zero(dy, np.logical_not((x <= min_val) | (x >= max_val)))


def relu6(input: Tensor, inplace: CompatArg = False) -> Tensor:
    """input clamped to [0, 6] (Krizhevsky 2010, Convolutional deep belief networks on CIFAR-10)."""
    return hardtanh(input, 0, 6)

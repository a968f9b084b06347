"""More activations: piecewise lines, shrinkage, and those with a parameter of their own.

`inplace=True` writes the answer into input.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.torch_compat import CompatArg

from ..shape.axes import axis
from .activation import sigmoid
from .arithmetic import whole_factor

__all__ = [
    "celu", "glu", "hardshrink", "hardsigmoid", "hardswish", "prelu", "selu", "softshrink", "softsign", "tanhshrink",
    "threshold",
]  # fmt: skip


@op(cast=Cast.KEEP, integers="refuse")
def hardsigmoid(input: Array, inplace: CompatArg = False):
    """(input + 3) / 6 held between 0 and 1 (Courbariaux et al. 2015, arXiv:1511.00363, with PyTorch's slope)."""
    return np.minimum(np.maximum(input + 3, 0), 6) / 6, Saved(input=input)


@hardsigmoid.backward
def hardsigmoid_backward(dy, saved, needs):
    return dy * _inside(saved.input).astype(dy.dtype) / 6


@op(cast=Cast.KEEP, integers="refuse")
def hardswish(input: Array, inplace: CompatArg = False):
    """input * hardsigmoid(input) (Howard et al. 2019, arXiv:1905.02244, sec. 5.2)."""
    return input * np.minimum(np.maximum(input + 3, 0), 6) / 6, Saved(input=input)


@hardswish.backward
def hardswish_backward(dy, saved, needs):
    x = saved.input
    return dy * np.where(_inside(x), x / 3 + 0.5, (plain(x) > 0).astype(x.dtype))


def _inside(x: Any) -> Any:
    return np.abs(plain(x)) < 3


# Klambauer et al. 2017, arXiv:1706.02515, eq. 14: the fixed point of mean 0 and variance 1.
_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805


@op(cast=Cast.KEEP, integers="refuse")
def selu(input: Array, inplace: CompatArg = False):
    """1.0507 times: input where positive, else 1.6733 (exp(input) - 1). Klambauer et al. 2017, arXiv:1706.02515."""
    return _SCALE * _bent(input, _ALPHA, 1.0), Saved(input=input)


@selu.backward
def selu_backward(dy, saved, needs):
    return dy * _SCALE * _slope(saved.input, _ALPHA, 1.0)


@op(cast=Cast.KEEP, integers="refuse")
def celu(input: Array, alpha=1.0, inplace: CompatArg = False):
    """input where positive, else alpha (exp(input / alpha) - 1). Barron 2017, arXiv:1704.07483.

    Raises ArgumentError for an alpha of 0.
    """
    return _bent(input, alpha, 1 / alpha), Saved(input=input)


@celu.check
def celu_check(input, alpha):
    if alpha == 0:
        raise ArgumentError("celu", "an alpha other than 0", f"{alpha}")


@celu.backward
def celu_backward(dy, saved, needs, alpha):
    return dy * _slope(saved.input, 1.0, 1 / alpha)


def _bent(x: Any, height: float, rate: float) -> Any:
    return np.where(x > 0, x, height * np.expm1(rate * np.minimum(x, 0)))


def _slope(x: Any, height: float, rate: float) -> Any:
    return np.where(plain(x) > 0, 1.0, height * np.exp(rate * np.minimum(x, 0)))


@op(cast=Cast.KEEP, integers="float")
def softsign(input: Array):
    """input / (1 + |input|). Glorot and Bengio 2010, AISTATS, sec. 3."""
    return input / (1 + np.abs(input)), Saved(input=input)


@softsign.backward
def softsign_backward(dy, saved, needs):
    return dy / np.square(1 + np.abs(saved.input))


# shrinkage: small values become 0


@op(cast=Cast.KEEP, integers="float")
def tanhshrink(input: Array):
    """input - tanh(input)."""
    return input - np.tanh(input), Saved(input=input)


@tanhshrink.backward
def tanhshrink_backward(dy, saved, needs):
    return dy * np.square(np.tanh(saved.input))


@op(cast=Cast.KEEP, moves=True)
def hardshrink(input: Array, lambd=0.5):
    """input where |input| > lambd, else 0; NaN stays NaN."""
    return np.where(np.abs(input) <= lambd, 0, input), Saved(input=input)


@hardshrink.backward
def hardshrink_backward(dy, saved, needs, lambd):
    return np.where(np.abs(plain(saved.input)) <= lambd, 0, dy)


@op(cast=Cast.KEEP, integers="refuse")
def softshrink(input: Array, lambd=0.5):
    """input moved towards 0 by lambd, and 0 where it would pass it; NaN stays NaN.

    Raises ArgumentError for a negative lambd.
    """
    moved = input - lambd * np.sign(input)
    return np.where(np.abs(input) <= lambd, 0, moved), Saved(input=input)


@softshrink.check
def softshrink_check(input, lambd):
    if not lambd >= 0:
        raise ArgumentError("softshrink", "lambd from 0", f"{lambd}")


@softshrink.backward
def softshrink_backward(dy, saved, needs, lambd):
    return np.where(np.abs(plain(saved.input)) <= lambd, 0, dy)


@op(cast=Cast.KEEP)
def threshold(input: Array, threshold: float, value: float, inplace: CompatArg = False):
    """input where it is above `threshold`, else the number `value`, which for integers has to be whole."""
    value = whole_factor("threshold", "value", value, input)
    return np.where(input <= threshold, value, input), Saved(input=input)


@threshold.backward
def threshold_backward(dy, saved, needs, threshold, value):
    return np.where(plain(saved.input) <= threshold, 0, dy)


# with a parameter, or half of the input


@op(cast=Cast.LOW)
def prelu(input: Array, weight: Array):
    """input where positive, else weight * input: weight [1], or [C] for input [N, C, ...]; a 0-d weight is one for all.

    Raises ShapeError for a weight of another length. He et al. 2015, arXiv:1502.01852, eq. 1.
    """
    return np.where(input > 0, input, _along(weight, input) * input), Saved(
        input=input, weight=weight, shape=weight.shape
    )


@prelu.check
def prelu_check(input, weight):
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or weight.size not in (1, channels):
        raise ShapeError("prelu", f"weight [1] or [{channels}], one per channel", f"shape {tuple(weight.shape)}")


@prelu.backward(weight="input")
def prelu_backward(dy, saved, needs):
    x, below = saved.input, plain(saved.input) <= 0
    dx = np.where(below, dy * _along(saved.weight, x), dy) if needs[0] is not None else None
    if needs[1] is None:
        return dx, None
    share = np.where(below, dy * x, 0)
    if math.prod(saved.shape) > 1:
        return dx, blocked_sum(share, tuple([i for i in range(x.ndim) if i != 1]))
    return dx, blocked_sum(share).reshape(saved.shape)


def _along(weight: Any, input: Any) -> Any:
    return weight.reshape((1, -1, *(1,) * (input.ndim - 2))[: input.ndim] if input.ndim > 1 else (1,) * input.ndim)


@op(cast=Cast.KEEP, integers="refuse")
def glu(input: Array, dim=-1):
    """The first half of input along `dim` times the sigmoid of the second: [.., 2 n, ..] -> [.., n, ..].

    Raises ShapeError for an odd length. Dauphin et al. 2016, arXiv:1612.08083, sec. 2.
    """
    value, gate = _halves(input, dim)
    return value / (1 + np.exp(-gate)), Saved(input=input)


@glu.check
def glu_check(input, dim):
    at = axis("glu", dim, input.ndim)
    if not input.ndim or input.shape[at] % 2:
        raise ShapeError("glu", f"an even length along dim {dim}", f"shape {tuple(input.shape)}")


@glu.backward
def glu_backward(dy, saved, needs, dim):
    value, gate = _halves(saved.input, dim)
    open_ = apply(sigmoid, gate)
    return np.concatenate([dy * open_, dy * value * open_ * (1 - open_)], dim)


def _halves(x: Any, dim: int) -> tuple[Any, Any]:
    before, half = (slice(None),) * (dim % x.ndim), x.shape[dim] // 2
    return x[(*before, slice(0, half))], x[(*before, slice(half, None))]

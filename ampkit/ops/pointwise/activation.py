"""Activations: what stands between linear layers, element by element.

`inplace=True` writes the answer into input.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.torch_compat import CompatArg

from ..indexing.masks import kept
from .unary import erf, tanh

__all__ = ["elu", "gelu", "leaky_relu", "logsigmoid", "mish", "relu", "sigmoid", "silu", "softplus", "tanh"]


@op(cast=Cast.KEEP, moves=True)
def relu(input: Array, inplace: CompatArg = False):
    """max(input, 0); its slope at 0 is 0, and NaN stays NaN (Nair & Hinton 2010, ICML)."""
    out = kept(input, np.logical_not(input <= 0))
    return out, Saved(out=out)


@relu.backward
def relu_backward(dy, saved, needs):
    return kept(dy, plain(saved.out).astype(bool))  # not 0: `out` is positive or NaN, and 16-bit compares are slow


@op(cast=Cast.KEEP, integers="refuse")
def leaky_relu(input: Array, negative_slope=0.01, inplace: CompatArg = False):
    """input where positive, else negative_slope * input (Maas et al. 2013, ICML)."""
    return _sloped(input, input, negative_slope), Saved(input=input)


@leaky_relu.backward
def leaky_relu_backward(dy, saved, needs, negative_slope):
    return _sloped(dy, plain(saved.input), negative_slope)


def _sloped(values: Any, x: Any, negative_slope: float) -> Any:
    return values * (negative_slope + (1 - negative_slope) * (x > 0)).astype(x.dtype)


@op(cast=Cast.KEEP, integers="refuse")
def elu(input: Array, alpha=1.0, inplace: CompatArg = False):
    """input where positive, else alpha * (exp(input) - 1) (Clevert et al. 2016, arXiv:1511.07289)."""
    return np.where(input > 0, input, alpha * np.expm1(np.minimum(input, 0))), Saved(input=input)


@elu.backward
def elu_backward(dy, saved, needs, alpha):
    below = alpha * np.exp(np.minimum(saved.input, 0))
    return dy * np.where(plain(saved.input) > 0, 1.0, below)


@op(cast=Cast.KEEP, integers="float")
def sigmoid(input: Array):
    """1 / (1 + exp(-input)), accurate at both ends."""
    out = 1 / (1 + np.exp(-input))
    return out, Saved(out=out)


@sigmoid.backward
def sigmoid_backward(dy, saved, needs):
    return dy * saved.out * (1 - saved.out)


@op(cast=Cast.KEEP, integers="refuse")
def logsigmoid(input: Array):
    """log(sigmoid(input)), accurate at both ends."""
    return np.minimum(input, 0) - np.log1p(np.exp(-np.abs(input))), Saved(input=input)


@logsigmoid.backward
def logsigmoid_backward(dy, saved, needs):
    return dy * apply(sigmoid, -saved.input)


@op(cast=Cast.KEEP, integers="refuse")
def silu(input: Array, inplace: CompatArg = False):
    """input * sigmoid(input), also called swish (Elfwing et al. 2018, arXiv:1702.03118)."""
    return input / (1 + np.exp(-input)), Saved(input=input)


@silu.backward
def silu_backward(dy, saved, needs):
    gate = apply(sigmoid, saved.input)  # 1 / (1 + exp(-x)) itself has the slope inf / inf where exp(-x) overflows
    return dy * (gate * (1 + saved.input * (1 - gate)))


@op(cast=Cast.FP32, integers="float")
def softplus(input: Array, beta=1.0, threshold=20.0):
    """log(1 + exp(beta input)) / beta, without overflow; input itself where beta input > threshold. In float32."""
    z = beta * input
    smooth = np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))
    return np.where(z > threshold, input, smooth / beta), Saved(input=input)


@softplus.backward
def softplus_backward(dy, saved, needs, beta, threshold):
    z = beta * saved.input
    return dy * np.where(plain(z) > threshold, 1.0, apply(sigmoid, z))


@op(cast=Cast.KEEP, integers="refuse")
def mish(input: Array, inplace: CompatArg = False):
    """input * tanh(softplus(input)) (Misra 2019, arXiv:1908.08681)."""
    return input * np.tanh(_softplus(input)), Saved(input=input)


@mish.backward
def mish_backward(dy, saved, needs):
    x = saved.input
    gate = np.tanh(_softplus(x))
    return dy * (gate + x * (1 - gate * gate) * apply(sigmoid, x))


def _softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


# GELU: x times the standard normal distribution function (Hendrycks & Gimpel 2016, arXiv:1606.08415).

_RATE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715  # eq. 2 there


@op(cast=Cast.KEEP, integers="refuse")
def gelu(input: Array, approximate="none"):
    """input times the standard normal distribution function; approximate="tanh" takes the authors' tanh formula for it.

    Raises ArgumentError for another `approximate`. Hendrycks & Gimpel 2016, arXiv:1606.08415, eq. 1-2.
    """
    share = _normal_share(input) if approximate == "none" else 0.5 * (1 + np.tanh(_bend(input)))
    return input * share, Saved(input=input)


@gelu.check
def gelu_check(input, approximate):
    if approximate not in ("none", "tanh"):
        raise ArgumentError("gelu", "approximate 'none' or 'tanh'", repr(approximate))


@gelu.backward
def gelu_backward(dy, saved, needs, approximate):
    x = saved.input
    if approximate == "none":
        return dy * (_normal_share(x) + x * (np.exp(-0.5 * x * x) * (0.5 * _RATE)))
    t = np.tanh(_bend(x))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (_RATE * (1 + 3 * _CUBIC * x * x)))


def _normal_share(x: Any) -> Any:
    return 0.5 * (1 + apply(erf, x * math.sqrt(0.5)))


def _bend(x: Any) -> Any:
    return x * (_RATE + _RATE * _CUBIC * (x * x))

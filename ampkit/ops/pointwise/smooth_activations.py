"""Smooth activations: sigmoid, GELU, SiLU, ELU and their relatives, and GLU.

`inplace=True` writes the result into input.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.capture.anew import BY_ITS_KERNEL
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import normalize_axis
from .elementwise import unary
from .error_function import erf

__all__ = [
    "celu", "elu", "gelu", "glu", "logsigmoid", "mish", "selu", "sigmoid", "silu", "silu_mul", "softplus", "softsign",
    "tanhshrink",
]  # fmt: skip


@op(cast=Cast.KEEP, integers="refuse")
def elu(input: Array, alpha=1.0, inplace: CompatArg = False):
    """input where positive, else alpha * (exp(input) - 1) (Clevert et al. 2016, arXiv:1511.07289)."""
    return _scaled_elu(input, alpha, 1.0), Saved(input=input)


@elu.backward
def elu_backward(dy, saved, needs, alpha):
    return dy * _scaled_elu_grad(saved.input, alpha, 1.0)


_unary = partial(unary, __name__)
sigmoid = _unary(
    "sigmoid",
    lambda x: 1 / (1 + np.exp(-x)),
    lambda dy, y: dy * y * (1 - y),
    "1 / (1 + exp(-input)), accurate for large |input|.",
    saves="out",
)
logsigmoid = _unary(
    "logsigmoid",
    lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))),
    lambda dy, x: dy * apply(sigmoid, -x),
    "log(sigmoid(input)), accurate for large |input|.",
    integers="refuse",
)
softsign = _unary(
    "softsign",
    lambda x: x / (1 + np.abs(x)),
    lambda dy, x: dy / np.square(1 + np.abs(x)),
    "input / (1 + |input|). Glorot and Bengio 2010, AISTATS, sec. 3.",
)
tanhshrink = _unary(
    "tanhshrink", lambda x: x - np.tanh(x), lambda dy, x: dy * np.square(np.tanh(x)), "input - tanh(input)."
)


@op(cast=Cast.KEEP, integers="refuse")
def silu(input: Array, inplace: CompatArg = False):
    """input * sigmoid(input), also called swish (Elfwing et al. 2018, arXiv:1702.03118)."""
    return input / (1 + np.exp(-input)), Saved(input=input)


silu.anew = BY_ITS_KERNEL


@silu.backward
def silu_backward(dy, saved, needs):
    gate = apply(sigmoid, saved.input)  # 1 / (1 + exp(-x)) itself has the derivative inf / inf where exp(-x) overflows
    return dy * (gate * (1 + saved.input * (1 - gate)))


@op(cast=Cast.WIDEST, integers="refuse")
def silu_mul(input: Array, other: Array):
    """silu(input) * other, broadcast and rounded once: the gate of SwiGLU (Shazeer 2020, arXiv:2002.05202, eq. 6)."""
    x = _beside(input, other)
    return x / (1 + np.exp(-x)) * other, Saved(input=input, other=other)


@silu_mul.backward
def silu_mul_backward(dy, saved, needs):
    x = _beside(saved.input, saved.other)
    gate = 1 / (1 + np.exp(-x)) if needs[0] is None else apply(sigmoid, x)
    return (
        dy * saved.other * (gate * (1 + x * (1 - gate))) if needs[0] is not None else None,
        dy * (x * gate) if needs[1] is not None else None,
    )


def _beside(value: Any, other: Any) -> Any:
    # A number in the dtype of the array beside it, which NumPy's functions would make float64.
    return value if hasattr(value, "dtype") else other.dtype.type(value)


@op(cast=Cast.FP32, integers="float")
def softplus(input: Array, beta=1.0, threshold=20.0):
    """log(1 + exp(beta input)) / beta, without overflow; input itself where beta input > threshold. In float32."""
    z = beta * input
    return np.where(z > threshold, input, softplus_array(z) / beta), Saved(input=input)


@softplus.backward
def softplus_backward(dy, saved, needs, beta, threshold):
    z = beta * saved.input
    return dy * np.where(plain(z) > threshold, 1.0, apply(sigmoid, z))


@op(cast=Cast.KEEP, integers="refuse")
def mish(input: Array, inplace: CompatArg = False):
    """input * tanh(softplus(input)) (Misra 2019, arXiv:1908.08681)."""
    return input * np.tanh(softplus_array(input)), Saved(input=input)


@mish.backward
def mish_backward(dy, saved, needs):
    x = saved.input
    gate = np.tanh(softplus_array(x))
    return dy * (gate + x * (1 - gate * gate) * apply(sigmoid, x))


def softplus_array(x: Any) -> Any:
    """log(1 + exp(x)), without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


# GELU: x times the standard normal distribution function (Hendrycks & Gimpel 2016, arXiv:1606.08415).

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715  # eq. 2 there


@op(cast=Cast.KEEP, integers="refuse")
def gelu(input: Array, approximate="none"):
    """input times the standard normal distribution function; approximate="tanh" takes the authors' tanh formula for it.

    Raises ArgumentError for another `approximate`. Hendrycks & Gimpel 2016, arXiv:1606.08415, eq. 1-2.
    """
    share = _normal_cdf(input) if approximate == "none" else 0.5 * (1 + np.tanh(_tanh_argument(input)))
    return input * share, Saved(input=input)


gelu.anew = BY_ITS_KERNEL


@gelu.check
def gelu_check(input, approximate):
    if approximate not in ("none", "tanh"):
        raise ArgumentError("gelu", "approximate 'none' or 'tanh'", repr(approximate))


@gelu.backward
def gelu_backward(dy, saved, needs, approximate):
    x = saved.input
    if approximate == "none":
        return dy * (_normal_cdf(x) + x * (np.exp(-0.5 * x * x) * (0.5 * _SQRT_2_OVER_PI)))
    t = np.tanh(_tanh_argument(x))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (_SQRT_2_OVER_PI * (1 + 3 * _CUBIC * x * x)))


def _normal_cdf(x: Any) -> Any:
    return 0.5 * (1 + apply(erf, x * math.sqrt(0.5)))


def _tanh_argument(x: Any) -> Any:
    return x * (_SQRT_2_OVER_PI + _SQRT_2_OVER_PI * _CUBIC * (x * x))


# Klambauer et al. 2017, arXiv:1706.02515, eq. 14: the fixed point of mean 0 and variance 1.
_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805


@op(cast=Cast.KEEP, integers="refuse")
def selu(input: Array, inplace: CompatArg = False):
    """1.0507 times: input where positive, else 1.6733 (exp(input) - 1). Klambauer et al. 2017, arXiv:1706.02515."""
    return _SCALE * _scaled_elu(input, _ALPHA, 1.0), Saved(input=input)


@selu.backward
def selu_backward(dy, saved, needs):
    return dy * _SCALE * _scaled_elu_grad(saved.input, _ALPHA, 1.0)


@op(cast=Cast.KEEP, integers="refuse")
def celu(input: Array, alpha=1.0, inplace: CompatArg = False):
    """input where positive, else alpha (exp(input / alpha) - 1). Barron 2017, arXiv:1704.07483.

    Raises ArgumentError for an alpha of 0.
    """
    return _scaled_elu(input, alpha, 1 / alpha), Saved(input=input)


@celu.check
def celu_check(input, alpha):
    if alpha == 0:
        raise ArgumentError("celu", "an alpha other than 0", f"{alpha}")


@celu.backward
def celu_backward(dy, saved, needs, alpha):
    return dy * _scaled_elu_grad(saved.input, 1.0, 1 / alpha)


def _scaled_elu(x: Any, height: float, rate: float) -> Any:
    return np.where(x > 0, x, height * np.expm1(rate * np.minimum(x, 0)))


def _scaled_elu_grad(x: Any, height: float, rate: float) -> Any:
    return np.where(plain(x) > 0, 1.0, height * np.exp(rate * np.minimum(x, 0)))


@op(cast=Cast.KEEP, integers="refuse")
def glu(input: Array, dim=-1):
    """The first half of input along `dim` times sigmoid of the second: [.., 2 n, ..] -> [.., n, ..].

    Raises ShapeError for an odd length. Dauphin et al. 2016, arXiv:1612.08083, sec. 2.
    """
    value, gate = _halves(input, dim)
    return value / (1 + np.exp(-gate)), Saved(input=input)


@glu.check
def glu_check(input, dim):
    at = normalize_axis("glu", dim, input.ndim)
    if not input.ndim or input.shape[at] % 2:
        raise ShapeError("glu", f"an even length along dim {dim}", f"shape {tuple(input.shape)}")


@glu.backward
def glu_backward(dy, saved, needs, dim):
    value, gate = _halves(saved.input, dim)
    gate = apply(sigmoid, gate)
    return np.concatenate([dy * gate, dy * value * gate * (1 - gate)], dim)


def _halves(x: Any, dim: int) -> tuple[Any, Any]:
    before, half = (slice(None),) * (dim % x.ndim), x.shape[dim] // 2
    return x[(*before, slice(0, half))], x[(*before, slice(half, None))]

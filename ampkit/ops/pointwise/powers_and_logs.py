"""Powers, roots, exponentials and logarithms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import FLOATS, bool_, float32, float64, int64
from ampkit.base.errors import ArgumentError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from .arithmetic import mul
from .conversion import to

__all__ = [
    "exp",
    "exp2",
    "expm1",
    "float_power",
    "ldexp",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "pow",
    "reciprocal",
    "rsqrt",
    "sqrt",
    "square",
]  # fmt: skip

_NUMBERS = (int, float)


@op(cast=Cast.FP32, numpy=np.power)
def pow(input: Array, exponent: Array):
    """input to the power exponent, broadcast. In float32; integers stay integers.

    Raises ArgumentError for integers to a negative integer power.
    """
    out = _integer_power(input, exponent) if getattr(exponent, "dtype", float32) not in FLOATS else input**exponent
    return out, Saved(input=input, exponent=exponent, out=out)


def _integer_power(input: Any, exponent: Any) -> Any:
    def fail(value: Any, position: Any) -> None:
        cure = "cast first: x.float()"
        raise ArgumentError("pow", "non-negative exponents for integers", f"{value} at position {position}", cure)

    backends.backend_of(exponent).raise_if(exponent, exponent < 0, fail)
    power = input**exponent
    return power.astype(np.bool_) if exponent.dtype == np.bool_ else power  # NumPy's is int8


@pow.check
def pow_check(input, exponent):
    if type(exponent) is int and exponent < 0 and input.dtype.kind in "biu":
        raise ArgumentError("pow", "a non-negative exponent for integers", f"{exponent}", "cast first: x.float()")


@pow.backward(exponent="input exponent", out="exponent")
def pow_backward(dy, saved, needs):
    x, k = saved.input, saved.exponent
    return _pow_base_grad(dy, x, k) if needs[0] else None, _pow_exponent_grad(dy, saved) if needs[1] else None


def _pow_base_grad(dy: Any, x: Any, k: Any) -> Any:
    if type(k) in _NUMBERS:
        return np.zeros_like(dy) if k == 0 else dy * (x if k == 2 else x ** (k - 1)) * k
    return np.where(plain(k) == 0, 0, dy * k * x ** (k - 1))


def _pow_exponent_grad(dy: Any, saved: Any) -> Any:
    zero = plain(saved.input) == 0  # 0^k is 0 for all k > 0: its derivative by k is 0
    grad = dy * saved.out * np.log(saved.input)
    return np.where(zero & (plain(saved.exponent) >= 0), 0, grad)


@op(cast=Cast.FP32, numpy=np.square)
def square(input: Array):
    """input * input. In float32, as `pow`; of bool in int64."""
    if input.dtype == bool_:
        input = input.astype(int64)
    return input * input, Saved(input=input)


@square.backward
def square_backward(dy, saved, needs):
    return dy * (2 * saved.input)


@op(cast=Cast.KEEP, integers="float", numpy=np.sqrt)
def sqrt(input: Array):
    """The square root; NaN below 0."""
    out = np.sqrt(input)
    return out, Saved(out=out)


@sqrt.backward
def sqrt_backward(dy, saved, needs):
    return dy / (2 * saved.out)


@op(cast=Cast.FP32, integers="float")
def rsqrt(input: Array):
    """1 / sqrt(input). In float32."""
    out = 1 / np.sqrt(input)
    return out, Saved(out=out)


@rsqrt.backward
def rsqrt_backward(dy, saved, needs):
    return dy * (-0.5 * saved.out * saved.out * saved.out)


@op(cast=Cast.FP32, integers="float", numpy=np.reciprocal)
def reciprocal(input: Array):
    """1 / input. In float32."""
    out = 1 / input
    return out, Saved(out=out)


@reciprocal.backward
def reciprocal_backward(dy, saved, needs):
    return -dy * saved.out * saved.out


# exponentials and logarithms


@op(cast=Cast.FP32, integers="float", numpy=np.exp)
def exp(input: Array):
    """e to the power input. In float32."""
    out = np.exp(input)
    return out, Saved(out=out)


@exp.backward
def exp_backward(dy, saved, needs):
    return dy * saved.out


@op(cast=Cast.KEEP, integers="float", numpy=np.exp2)
def exp2(input: Array):
    """2 to the power input."""
    out = np.exp2(input)
    return out, Saved(out=out)


@exp2.backward
def exp2_backward(dy, saved, needs):
    return dy * saved.out * math.log(2)


@op(cast=Cast.FP32, integers="float", numpy=np.expm1)
def expm1(input: Array):
    """exp(input) - 1, accurate near 0. In float32."""
    out = np.expm1(input)
    return out, Saved(out=out)


@expm1.backward
def expm1_backward(dy, saved, needs):
    return dy * (saved.out + 1)


@op(cast=Cast.FP32, integers="float", numpy=np.log)
def log(input: Array):
    """The natural logarithm; -inf at 0, NaN below. In float32."""
    return np.log(input), Saved(input=input)


@log.backward
def log_backward(dy, saved, needs):
    return dy / saved.input


@op(cast=Cast.FP32, integers="float", numpy=np.log2)
def log2(input: Array):
    """The logarithm to base 2. In float32."""
    return np.log2(input), Saved(input=input)


@log2.backward
def log2_backward(dy, saved, needs):
    return dy / (saved.input * math.log(2))


@op(cast=Cast.FP32, integers="float", numpy=np.log10)
def log10(input: Array):
    """The logarithm to base 10. In float32."""
    return np.log10(input), Saved(input=input)


@log10.backward
def log10_backward(dy, saved, needs):
    return dy / (saved.input * math.log(10))


@op(cast=Cast.FP32, integers="float", numpy=np.log1p)
def log1p(input: Array):
    """log(1 + input), accurate near 0. In float32."""
    return np.log1p(input), Saved(input=input)


@log1p.backward
def log1p_backward(dy, saved, needs):
    return dy / (1 + saved.input)


def float_power(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """input to the power exponent, broadcast, in float64; one of them may be a number."""
    wide = [to(t, float64) if isinstance(t, Tensor) else float(t) for t in (input, exponent)]
    return pow(*wide)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input times 2 to the power other, broadcast; of integers in float32."""
    found = mul(input, pow(2.0, other))
    return to(found, input.dtype) if input.is_floating_point() else found


_LN_2 = 0.6931471805599453


@op(cast=Cast.WIDEST, integers="float", numpy=np.logaddexp)
def logaddexp(input: Array, other: Array):
    """log(exp(input) + exp(other)), broadcast, without overflow."""
    added = np.log1p(np.exp(-np.abs(_difference(input, other))))
    return np.maximum(input, other) + added, Saved(input=input, other=other)


@logaddexp.backward
def logaddexp_backward(dy, saved, needs):
    lead = _difference(saved.input, saved.other)
    return (
        dy * _logistic(lead) if needs[0] is not None else None,
        dy * _logistic(-lead) if needs[1] is not None else None,
    )


@op(cast=Cast.WIDEST, integers="float")
def logaddexp2(input: Array, other: Array):
    """log2(2^input + 2^other), broadcast; see logaddexp."""
    added = np.log1p(np.exp2(-np.abs(_difference(input, other)))) / _LN_2
    return np.maximum(input, other) + added, Saved(input=input, other=other)


@logaddexp2.backward
def logaddexp2_backward(dy, saved, needs):
    lead = _difference(saved.input, saved.other) * _LN_2
    return (
        dy * _logistic(lead) if needs[0] is not None else None,
        dy * _logistic(-lead) if needs[1] is not None else None,
    )


def _difference(input: Array, other: Array) -> Array:
    # input - other, 0 for two equal infinities
    a, b = plain(input), plain(other)
    return np.where((a == b) & np.isinf(a), 0, input - other)


def _logistic(x: Array) -> Array:
    positive = plain(x) > 0
    near = np.exp(np.where(positive, -x, x))
    return np.where(positive, 1, near) / (1 + near)

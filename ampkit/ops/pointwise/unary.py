"""Functions of one operand, element by element: powers, exponentials, logarithms, rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.dtypes import bool_, int64
from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

from ..indexing.masks import sign as sign_of
from .error_function import error_function

__all__ = [
    "abs",
    "ceil",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "log",
    "log1p",
    "log2",
    "log10",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sign",
    "sqrt",
    "square",
    "tanh",
    "trunc",
]


@op(cast=Cast.KEEP, numpy=np.negative)
def neg(input: Array):
    """-input."""
    return -input


@neg.backward
def neg_backward(dy, saved, needs):
    return -dy


@op(cast=Cast.KEEP, numpy=np.abs)
def abs(input: Array):
    """The absolute value; its slope at 0 is 0."""
    return np.abs(input), Saved(input=input)


@abs.backward
def abs_backward(dy, saved, needs):
    return dy * sign_of(plain(saved.input))


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


# bounded curves


@op(cast=Cast.KEEP, integers="float", numpy=np.tanh)
def tanh(input: Array):
    """The hyperbolic tangent."""
    out = np.tanh(input)
    return out, Saved(out=out)


@tanh.backward
def tanh_backward(dy, saved, needs):
    return dy * (1 - saved.out * saved.out)


@op(cast=Cast.KEEP, integers="float")
def erf(input: Array):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to input.

    Within 6 units of the last place in float32, 4 eps in float64.
    """
    return error_function(input), Saved(input=input)


@erf.backward
def erf_backward(dy, saved, needs):
    return dy * (2 / math.sqrt(math.pi) * np.exp(-saved.input * saved.input))


# rounding: steps, whose slope is 0


def _step(name: str, function: Any, meaning: str, kernel: Any = None) -> Any:
    kernel = kernel or function

    def reference(input: Array):
        return input.copy() if input.dtype == bool_ else kernel(input)

    reference.__name__ = reference.__qualname__ = name
    reference.__doc__ = f"{meaning} Its gradient is zero."
    made = op(cast=Cast.KEEP, numpy=function)(reference)
    made.backward(_flat)
    return made


def _flat(dy, saved, needs, **params):
    return np.zeros_like(dy)


sign = _step("sign", np.sign, "-1, 0 or 1, as the sign; 0 for NaN.", sign_of)
floor = _step("floor", np.floor, "The largest whole number not above input.")
ceil = _step("ceil", np.ceil, "The smallest whole number not below input.")
trunc = _step("trunc", np.trunc, "input without its fraction.")


@op(cast=Cast.KEEP, numpy=np.round)
def round(input: Array, *, decimals: int = 0):
    """The nearest whole number, halves to even; with `decimals`, the nearest multiple of 10^-decimals.

    Its gradient is zero.
    """
    return input.copy() if input.dtype == bool_ else np.round(input, decimals)


round.backward(_flat)

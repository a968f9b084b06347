"""Powers, roots, exponentials and logarithms."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ampkit.base.dtypes import FLOATS, bool_, float32, float64, int64, is_float
from ampkit.base.errors import ArgumentError
from ampkit.base.formats import need_arithmetic
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_values
from ..named import named
from ..tensor_info import result_type
from .arithmetic import mul
from .conversion import to
from .elementwise import unary
from .smooth_activations import sigmoid

__all__ = [
    "exp", "exp2", "expm1", "float_power", "ldexp", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2", "pow",
    "reciprocal", "rsqrt", "sqrt", "square",
]  # fmt: skip

_NUMBERS = (int, float)


@op(cast=Cast.FP32, numpy=np.power)
def pow(input: Array, exponent: Array):
    """input to the power exponent, broadcast. In float32; integers stay integers.

    Raises ArgumentError for integers to a negative integer power.
    """
    out = _integer_power(input, exponent) if getattr(exponent, "dtype", float32) not in FLOATS else input**exponent
    if type(exponent) is bool and input.dtype == bool_:
        out = out.astype(bool_)  # NumPy's is int8
    return out, Saved(input=input, exponent=exponent, out=out)


def _integer_power(input: Any, exponent: Any) -> Any:
    needs, cure = "non-negative exponents for integers", "cast first: x.float()"
    check_values("pow", exponent, exponent < 0, needs, cure, ArgumentError)
    power = input**exponent
    return power.astype(np.bool_) if exponent.dtype == np.bool_ else power  # NumPy's is int8


@pow.check
def pow_check(input, exponent):
    if type(exponent) is int and exponent < 0 and input.dtype.kind in "biu":
        raise ArgumentError("pow", "a non-negative exponent for integers", f"{exponent}", "cast first: x.float()")


@pow.backward(exponent="input exponent", out="exponent")
def pow_backward(dy, saved, needs):
    x, k = saved.input, saved.exponent
    dx = _pow_base_grad(dy, x, k) if needs[0] else None
    if not needs[1]:
        return dx, None
    flat = (plain(x) == 0) & (plain(k) >= 0)  # 0^k is 0 for all k > 0: its derivative by k is 0
    return dx, np.where(flat, 0, dy * saved.out * np.log(x))


def _pow_base_grad(dy: Any, x: Any, k: Any) -> Any:
    if type(k) in _NUMBERS:
        return np.zeros_like(dy) if k == 0 else dy * (x if k == 2 else x ** (k - 1)) * k
    return np.where(plain(k) == 0, 0, dy * k * x ** (k - 1))


@op(cast=Cast.FP32, numpy=np.square)
def square(input: Array):
    """input * input. In float32, as `pow`; of bool in int64."""
    if input.dtype == bool_:
        input = input.astype(int64)
    return input * input, Saved(input=input)


@square.backward
def square_backward(dy, saved, needs):
    return dy * (2 * saved.input)


_unary = partial(unary, __name__)
sqrt = _unary("sqrt", np.sqrt, lambda dy, y: dy / (2 * y), "The square root; NaN below 0.", saves="out")
rsqrt = _unary(
    "rsqrt",
    lambda x: 1 / np.sqrt(x),
    lambda dy, y: dy * (-0.5 * y * y * y),
    "1 / sqrt(input). In float32.",
    Cast.FP32,
    saves="out",
)
reciprocal = _unary(
    "reciprocal", np.reciprocal, lambda dy, y: -dy * y * y, "1 / input. In float32.", Cast.FP32, saves="out"
)
exp = _unary("exp", np.exp, lambda dy, y: dy * y, "e to the power input. In float32.", Cast.FP32, saves="out")
exp2 = _unary("exp2", np.exp2, lambda dy, y: dy * y * math.log(2), "2 to the power input.", saves="out")
expm1 = _unary(
    "expm1",
    np.expm1,
    lambda dy, y: dy * (y + 1),
    "exp(input) - 1, accurate near 0. In float32.",
    Cast.FP32,
    saves="out",
)
log = _unary("log", np.log, lambda dy, x: dy / x, "The natural logarithm; -inf at 0, NaN below. In float32.", Cast.FP32)
log2 = _unary("log2", np.log2, lambda dy, x: dy / (x * math.log(2)), "The logarithm to base 2. In float32.", Cast.FP32)
log10 = _unary(
    "log10", np.log10, lambda dy, x: dy / (x * math.log(10)), "The logarithm to base 10. In float32.", Cast.FP32
)
log1p = _unary("log1p", np.log1p, lambda dy, x: dy / (1 + x), "log(1 + input), accurate near 0. In float32.", Cast.FP32)


def float_power(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """input to the power exponent, broadcast, in float64; one of them may be a number."""
    need_arithmetic("float_power", input, exponent)
    wide = [to(t, float64) if isinstance(t, Tensor) else float(t) for t in (input, exponent)]
    return pow(*wide)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input times 2 to the power other, broadcast; of integers in the default dtype."""
    agreed = result_type(input, other).dtype
    floats = input.is_floating_point() and other.is_floating_point()
    found = mul(input, pow(2.0, to(other, agreed) if floats else other))
    return to(found, agreed) if is_float(agreed) else found


def _log_of_sum(name: str, exp: Any, ln_base: float, doc: str) -> Op:
    @op(cast=Cast.WIDEST, integers="float", numpy=getattr(np, name))
    @named(name, doc)
    def made(input: Array, other: Array):
        added = np.log1p(exp(-np.abs(_difference(input, other)))) / ln_base
        return np.maximum(input, other) + added, Saved(input=input, other=other)

    @made.backward
    def backward(dy, saved, needs):
        lead = _difference(saved.input, saved.other) * ln_base
        da = dy * apply(sigmoid, lead) if needs[0] is not None else None
        return da, dy * apply(sigmoid, -lead) if needs[1] is not None else None

    return made


def _difference(input: Array, other: Array) -> Array:
    # input - other, 0 for two equal infinities
    a, b = plain(input), plain(other)
    return np.where((a == b) & np.isinf(a), 0, input - other)


logaddexp = _log_of_sum("logaddexp", np.exp, 1.0, "log(exp(input) + exp(other)), broadcast, without overflow.")
logaddexp2 = _log_of_sum("logaddexp2", np.exp2, math.log(2), "log2(2^input + 2^other), broadcast; see logaddexp.")

"""Signs, rounding and neighbours: neg, abs, sign, floor, round, frac, copysign, heaviside, nextafter."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import FLOATS, bool_
from ampkit.base.errors import DTypeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..named import named
from .elementwise import unary
from .selection import select_or_zero

__all__ = [
    "abs", "absolute", "ceil", "conj", "conj_physical", "copysign", "fix", "floor", "frac", "heaviside", "neg",
    "negative", "nextafter", "positive", "real", "resolve_conj", "round", "sgn", "sign", "signbit", "trunc",
]  # fmt: skip


def sign_of(x: Any) -> Any:
    """-1, 0 or 1 as the sign of a number, 0 for NaN, in the dtype of `x`."""
    return np.subtract(x > 0, x < 0, dtype=x.dtype)


@op(cast=Cast.KEEP, numpy=np.negative)
def neg(input: Array):
    """-input."""
    return -input


@neg.backward
def neg_backward(dy, saved, needs):
    return -dy


abs = unary(
    __name__,
    "abs",
    np.abs,
    lambda dy, x: dy * sign_of(plain(x)),
    "The absolute value; its derivative at 0 is 0.",
    integers="keep",
)


# step functions, with derivative 0


def _step_function(name: str, function: Any, meaning: str, kernel: Any = None) -> Any:
    kernel = kernel or function

    @op(cast=Cast.KEEP, numpy=function)
    @named(name, f"{meaning} Its gradient is zero.")
    def made(input: Array):
        return input.copy() if input.dtype == bool_ else kernel(input)

    made.backward(_zero_gradient)
    return made


def _zero_gradient(dy, saved, needs, **params):
    return np.zeros_like(dy)


sign = _step_function("sign", np.sign, "-1, 0 or 1, as the sign; 0 for NaN.", sign_of)
floor = _step_function("floor", np.floor, "The largest integer <= input.")
ceil = _step_function("ceil", np.ceil, "The smallest integer >= input.")
trunc = _step_function("trunc", np.trunc, "input truncated towards 0.")


_MOST_DIGITS = 400  # beyond float64's exponents


@op(cast=Cast.KEEP, numpy=np.round)
def round(input: Array, *, decimals: int = 0):
    """The nearest integer, halves to even; with `decimals`, the nearest multiple of 10^-decimals.

    Its gradient is zero.
    """
    digits = max(-_MOST_DIGITS, min(decimals, _MOST_DIGITS))  # NumPy multiplies by 10 as many times
    return input.copy() if input.dtype == bool_ else np.round(input, digits)


round.backward(_zero_gradient)


@op(cast=Cast.WIDEST, integers="float")
def copysign(input: Array, other: Array):
    """The magnitude of input with the sign of other, also of -0.0; broadcast. At 0 the gradient is 0."""
    out = np.copysign(input, other)
    return out, Saved(input=input, out=out)


@copysign.backward
def copysign_backward(dy, saved, needs):
    if needs[0] is None:  # input may be a number
        return None, None
    return dy * (sign_of(plain(saved.input)) * sign_of(plain(saved.out))), None


@op(cast=Cast.KEEP)
def signbit(input: Array):
    """Whether an element is negative, -0.0 too, as bool."""
    return np.signbit(input) if input.dtype.kind == "f" else input < 0


@op(cast=Cast.KEEP)
def frac(input: Array):
    """The fractional part, input - trunc(input)."""
    return input.copy() if input.dtype == bool_ else input - np.trunc(input)


@frac.backward
def frac_backward(dy, saved, needs):
    return dy


@op(cast=Cast.WIDEST, moves=True)
def heaviside(input: Array, values: Array):
    """0 below 0, 1 above it and `values` at it, broadcast; 0 for NaN. The gradient goes to values, where input is 0."""
    step = (input > 0).astype(input.dtype) if hasattr(input, "dtype") else float(input > 0)
    return np.where(input == 0, values, step), Saved(input=input)


@heaviside.backward(input="values")
def heaviside_backward(dy, saved, needs):
    zeros = np.zeros_like(dy) if needs[0] is not None else None
    return zeros, select_or_zero(dy, plain(saved.input) == 0) if needs[1] is not None else None


_BITS = {2: np.int16, 4: np.int32, 8: np.int64}  # by the bytes of a float


@op(cast=Cast.WIDEST, integers="refuse", moves=True)
def nextafter(input: Array, other: Array):
    """The float of the operands' dtype next to input towards other, broadcast: other where they are equal.

    NaN where one is. The gradient goes to input, and is 0 where they are equal. Raises DTypeError for integers.
    """
    dtype = (input if hasattr(input, "dtype") else other).dtype
    given, goal = (np.empty_like(input > other, dtype) for _ in range(2))
    given[...], goal[...] = input, other
    bits = _BITS[dtype.itemsize]
    # Floats of one sign are in the order of their bits.
    steps = np.where((goal > given) == (given > 0), 1, -1).astype(bits)
    smallest = np.copysign(np.ones_like(steps).view(dtype), goal)
    found = np.where(given == 0, smallest, (given.view(bits) + steps).view(dtype))
    found = np.where(given == goal, goal, found)
    return np.where(np.isnan(given) | np.isnan(goal), given + goal, found), Saved(moved=given != goal)


@nextafter.check
def nextafter_check(input, other):
    for given, beside in ((input, other), (other, input)):
        if hasattr(given, "dtype") and given.dtype not in FLOATS and not hasattr(beside, "dtype"):
            raise DTypeError("nextafter", "a floating-point tensor", given.dtype.name, "cast it: x.float()")


@nextafter.backward
def nextafter_backward(dy, saved, needs):
    return select_or_zero(dy, plain(saved.moved)) if needs[0] is not None else None, None


def positive(input: Tensor) -> Tensor:
    """The tensor itself."""
    return input


def conj(input: Tensor) -> Tensor:
    """The tensor itself: there are no complex numbers."""
    return input


conj_physical = resolve_conj = real = conj

absolute, negative, fix, sgn = abs, neg, trunc, sign

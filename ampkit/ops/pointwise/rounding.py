"""Signs, fractions, steps, and powers in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import bool_, float64
from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..indexing.masks import kept
from ..indexing.masks import sign as sign_of
from .arithmetic import mul, pow
from .conversion import to

__all__ = ["copysign", "float_power", "fmax", "fmin", "frac", "heaviside", "ldexp", "positive", "signbit"]


@op(cast=Cast.WIDEST, integers="float")
def copysign(input: Array, other: Array):
    """The size of input with the sign of other, that of -0.0 too; broadcast. The slope at 0 is 0, other takes none."""
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
    """input less its whole part: the sign is input's."""
    return input.copy() if input.dtype == bool_ else input - np.trunc(input)


@frac.backward
def frac_backward(dy, saved, needs):
    return dy


@op(cast=Cast.WIDEST, moves=True)
def heaviside(input: Array, values: Array):
    """0 below 0, 1 above it and `values` at it, broadcast; 0 for NaN. Its gradient goes to values, where they stand."""
    step = (input > 0).astype(input.dtype) if hasattr(input, "dtype") else float(input > 0)
    return np.where(input == 0, values, step), Saved(input=input)


@heaviside.backward(input="values")
def heaviside_backward(dy, saved, needs):
    zeros = np.zeros_like(dy) if needs[0] is not None else None
    return zeros, kept(dy, plain(saved.input) == 0) if needs[1] is not None else None


def _favoured(name: str, wins: Any, meaning: str) -> Any:
    def reference(input: Array, other: Array):
        return np.where(wins(input, other) | (other != other), input, other), Saved(input=input, other=other)

    def backward(dy, saved, needs):
        x, y = plain(saved.input), plain(saved.other)
        first = wins(x, y) | (y != y)
        return kept(dy, first), kept(dy, np.logical_not(first))

    reference.__name__ = reference.__qualname__ = name
    reference.__doc__ = f"The {meaning} of two, broadcast; a number wins over NaN. Equal ones: input has the gradient."
    made = op(cast=Cast.WIDEST, moves=True)(reference)
    made.backward(backward)
    return made


fmax = _favoured("fmax", lambda x, y: x >= y, "larger")
fmin = _favoured("fmin", lambda x, y: x <= y, "smaller")


def float_power(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """input to the power exponent, broadcast, in float64; one of them may be a number."""
    wide = [to(t, float64) if isinstance(t, Tensor) else float(t) for t in (input, exponent)]
    return pow(*wide)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input times 2 to the power other, broadcast; of integers in float32."""
    found = mul(input, pow(2.0, other))
    return to(found, input.dtype) if input.is_floating_point() else found


def positive(input: Tensor) -> Tensor:
    """The tensor itself."""
    return input

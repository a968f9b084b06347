"""Trigonometric and hyperbolic functions and their inverses, in radians."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from .arithmetic import mul

__all__ = [
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan",
    "atan2", "atanh", "cos", "cosh", "deg2rad", "hypot", "rad2deg", "sin", "sinc", "sinh", "tan", "tanh",
]  # fmt: skip


@op(cast=Cast.KEEP, integers="float", numpy=np.sin)
def sin(input: Array):
    """The sine of an angle in radians."""
    return np.sin(input), Saved(input=input)


@sin.backward
def sin_backward(dy, saved, needs):
    return dy * np.cos(saved.input)


@op(cast=Cast.KEEP, integers="float", numpy=np.cos)
def cos(input: Array):
    """The cosine of an angle in radians."""
    return np.cos(input), Saved(input=input)


@cos.backward
def cos_backward(dy, saved, needs):
    return -dy * np.sin(saved.input)


@op(cast=Cast.FP32, integers="float", numpy=np.tan)
def tan(input: Array):
    """The tangent of an angle in radians. In float32."""
    out = np.tan(input)
    return out, Saved(out=out)


@tan.backward
def tan_backward(dy, saved, needs):
    return dy * (1 + saved.out * saved.out)


@op(cast=Cast.FP32, integers="float", numpy=np.arcsin)
def asin(input: Array):
    """The angle in radians whose sine is input; NaN outside [-1, 1]. In float32."""
    return np.arcsin(input), Saved(input=input)


@asin.backward
def asin_backward(dy, saved, needs):
    return dy / np.sqrt((1 - saved.input) * (1 + saved.input))


@op(cast=Cast.FP32, integers="float", numpy=np.arccos)
def acos(input: Array):
    """The angle in radians whose cosine is input; NaN outside [-1, 1]. In float32."""
    return np.arccos(input), Saved(input=input)


@acos.backward
def acos_backward(dy, saved, needs):
    return -dy / np.sqrt((1 - saved.input) * (1 + saved.input))


@op(cast=Cast.KEEP, integers="float", numpy=np.arctan)
def atan(input: Array):
    """The angle in radians whose tangent is input."""
    return np.arctan(input), Saved(input=input)


@atan.backward
def atan_backward(dy, saved, needs):
    return dy / (1 + saved.input * saved.input)


@op(cast=Cast.FP32, integers="float", numpy=np.sinh)
def sinh(input: Array):
    """The hyperbolic sine. In float32."""
    return np.sinh(input), Saved(input=input)


@sinh.backward
def sinh_backward(dy, saved, needs):
    return dy * np.cosh(saved.input)


@op(cast=Cast.FP32, integers="float", numpy=np.cosh)
def cosh(input: Array):
    """The hyperbolic cosine. In float32."""
    return np.cosh(input), Saved(input=input)


@cosh.backward
def cosh_backward(dy, saved, needs):
    return dy * np.sinh(saved.input)


@op(cast=Cast.KEEP, integers="float", numpy=np.arcsinh)
def asinh(input: Array):
    """The number whose hyperbolic sine is input."""
    return np.arcsinh(input), Saved(input=input)


@asinh.backward
def asinh_backward(dy, saved, needs):
    return dy / np.sqrt(saved.input * saved.input + 1)


@op(cast=Cast.KEEP, integers="float", numpy=np.arccosh)
def acosh(input: Array):
    """The number from 0 whose hyperbolic cosine is input; NaN below 1."""
    return np.arccosh(input), Saved(input=input)


@acosh.backward
def acosh_backward(dy, saved, needs):
    return dy / np.sqrt((saved.input - 1) * (saved.input + 1))


@op(cast=Cast.KEEP, integers="float", numpy=np.arctanh)
def atanh(input: Array):
    """The number whose hyperbolic tangent is input; infinite at -1 and 1, NaN beyond."""
    return np.arctanh(input), Saved(input=input)


@atanh.backward
def atanh_backward(dy, saved, needs):
    return dy / ((1 - saved.input) * (1 + saved.input))


# sinc, degrees, hypot


@op(cast=Cast.KEEP, integers="float")
def sinc(input: Array):
    """sin(pi input) / (pi input), and 1 at 0."""
    return _sinc(math.pi * input), Saved(input=input)


def _sinc(y: Any) -> Any:
    zero = plain(y) == 0
    return np.where(zero, 1, np.sin(y) / np.where(zero, 1, y))


@sinc.backward
def sinc_backward(dy, saved, needs):
    y = math.pi * saved.input
    near = np.abs(plain(y)) < 0.3  # where the difference would cancel: the Taylor series, to float64 accuracy
    t = np.where(near, y * y, 0)
    series = y * (-1 / 3 + t * (1 / 30 + t * (-1 / 840 + t * (1 / 45360 - t / 3991680))))
    return dy * math.pi * np.where(near, series, (np.cos(y) - _sinc(y)) / np.where(near, 1, y))


def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians: input * pi / 180."""
    return mul(input, math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees: input * 180 / pi."""
    return mul(input, 180 / math.pi)


@op(cast=Cast.WIDEST, integers="float", numpy=np.hypot)
def hypot(input: Array, other: Array):
    """sqrt(input^2 + other^2), broadcast, without overflow; the gradient at the origin is 0."""
    out = np.hypot(input, other)
    return out, Saved(input=input, other=other, out=out)


@hypot.backward(input="input", other="other")
def hypot_backward(dy, saved, needs):
    share = dy / np.where(plain(saved.out) == 0, 1, saved.out)
    return (
        share * saved.input if needs[0] is not None else None,
        share * saved.other if needs[1] is not None else None,
    )


@op(cast=Cast.WIDEST, integers="float", numpy=np.arctan2)
def atan2(input: Array, other: Array):
    """The angle of the point (other, input), in radians from -pi to pi, broadcast."""
    return np.arctan2(input, other), Saved(input=input, other=other)


@atan2.backward
def atan2_backward(dy, saved, needs):
    y, x = saved.input, saved.other
    square = x * x + y * y
    share = dy / np.where(plain(square) == 0, 1, square)  # at the origin, 0
    return share * x if needs[0] else None, -share * y if needs[1] else None


# bounded curves


@op(cast=Cast.KEEP, integers="float", numpy=np.tanh)
def tanh(input: Array):
    """The hyperbolic tangent."""
    out = np.tanh(input)
    return out, Saved(out=out)


@tanh.backward
def tanh_backward(dy, saved, needs):
    return dy * (1 - saved.out * saved.out)


arccos, arcsin, arctan, arctan2 = acos, asin, atan, atan2
arccosh, arcsinh, arctanh = acosh, asinh, atanh

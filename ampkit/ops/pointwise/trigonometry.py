"""Trigonometric and hyperbolic functions and their inverses, in radians."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from .arithmetic import mul
from .elementwise import unary

__all__ = [
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan",
    "atan2", "atanh", "cos", "cosh", "deg2rad", "hypot", "rad2deg", "sin", "sinc", "sinh", "tan", "tanh",
]  # fmt: skip


_unary = partial(unary, __name__)
sin = _unary("sin", np.sin, lambda dy, x: dy * np.cos(x), "The sine of an angle in radians.")
cos = _unary("cos", np.cos, lambda dy, x: -dy * np.sin(x), "The cosine of an angle in radians.")
tan = _unary(
    "tan",
    np.tan,
    lambda dy, y: dy * (1 + y * y),
    "The tangent of an angle in radians. In float32.",
    Cast.FP32,
    saves="out",
)
asin = _unary(
    "asin",
    np.arcsin,
    lambda dy, x: dy / np.sqrt((1 - x) * (1 + x)),
    "The angle in radians whose sine is input; NaN outside [-1, 1]. In float32.",
    Cast.FP32,
)
acos = _unary(
    "acos",
    np.arccos,
    lambda dy, x: -dy / np.sqrt((1 - x) * (1 + x)),
    "The angle in radians whose cosine is input; NaN outside [-1, 1]. In float32.",
    Cast.FP32,
)
atan = _unary("atan", np.arctan, lambda dy, x: dy / (1 + x * x), "The angle in radians whose tangent is input.")
sinh = _unary("sinh", np.sinh, lambda dy, x: dy * np.cosh(x), "The hyperbolic sine. In float32.", Cast.FP32)
cosh = _unary("cosh", np.cosh, lambda dy, x: dy * np.sinh(x), "The hyperbolic cosine. In float32.", Cast.FP32)
tanh = _unary("tanh", np.tanh, lambda dy, y: dy * (1 - y * y), "The hyperbolic tangent.", saves="out")
asinh = _unary("asinh", np.arcsinh, lambda dy, x: dy / np.sqrt(x * x + 1), "The number whose hyperbolic sine is input.")
acosh = _unary(
    "acosh",
    np.arccosh,
    lambda dy, x: dy / np.sqrt((x - 1) * (x + 1)),
    "The number from 0 whose hyperbolic cosine is input; NaN below 1.",
)
atanh = _unary(
    "atanh",
    np.arctanh,
    lambda dy, x: dy / ((1 - x) * (1 + x)),
    "The number whose hyperbolic tangent is input; infinite at -1 and 1, NaN beyond.",
)


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
    length = np.where(plain(saved.out) == 0, 1, saved.out)
    return (
        dy * (saved.input / length) if needs[0] is not None else None,
        dy * (saved.other / length) if needs[1] is not None else None,
    )


@op(cast=Cast.WIDEST, integers="float", numpy=np.arctan2)
def atan2(input: Array, other: Array):
    """The angle of the point (other, input), in radians from -pi to pi, broadcast."""
    return np.arctan2(input, other), Saved(input=input, other=other)


@atan2.backward
def atan2_backward(dy, saved, needs):
    y, x = saved.input, saved.other
    size = np.maximum(np.abs(plain(x)), np.abs(plain(y)))
    scale = np.where((size > 0) & np.isfinite(size), size, 1)  # squares of the quotients are in range
    u, v = x / scale, y / scale
    square = u * u + v * v
    square = np.where(plain(square) == 0, 1, square)  # at the origin, 0
    return dy * (u / square / scale) if needs[0] else None, -dy * (v / square / scale) if needs[1] else None


arccos, arcsin, arctan, arctan2 = acos, asin, atan, atan2
arccosh, arcsinh, arctanh = acosh, asinh, atanh

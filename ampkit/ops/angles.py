"""Angles, in radians: sines and their inverses, and the hyperbolic ones, element by element."""

from __future__ import annotations

import numpy as np

from ..core.op import Array, Saved, op
from ..core.policy import Cast

__all__ = ["acos", "asin", "atan", "cos", "cosh", "sin", "sinh", "tan"]


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

"""Arithmetic, powers, logarithms, trigonometry and rounding."""

from __future__ import annotations

import math
from typing import Any

from ....base.dtypes import FLOATS, bool_
from ..graph import Graph, Value
from ..registry import FLOAT16, map_formulas, onnx_op


def _whole(g: Graph) -> bool:
    return g.out not in FLOATS


@onnx_op("add", low=FLOAT16)
def add(g: Graph, input: Value, other: Value, alpha: float) -> Any:
    if _whole(g):
        input, other = g.cast(input, g.out), g.cast(other, g.out)
    return g.Add(input, other if alpha == 1 else g.Mul(other, g.constant(alpha)))


@onnx_op("sub", low=FLOAT16)
def sub(g: Graph, input: Value, other: Value, alpha: float) -> Any:
    return g.Sub(input, other if alpha == 1 else g.Mul(other, g.constant(alpha)))


def _remainder(g: Graph, a: Value, b: Value) -> Any:
    # Of the sign of b, as Python's; ONNX's float remainder has that of a.
    if _whole(g):
        return g.Mod(a, b)
    zero, rest = g.constant(0), g.Mod(a, b, fmod=1)
    other_sign = g.And(g.Not(g.Equal(rest, zero)), g.Xor(g.Less(rest, zero), g.Less(b, zero)))
    return g.Where(other_sign, g.Add(rest, b), rest)


@onnx_op("floor_divide")
def floor_divide(g: Graph, input: Value, other: Value) -> Any:
    quotient = g.Div(g.Sub(input, _remainder(g, input, other)), other)
    return quotient if _whole(g) else g.Round(quotient)


@onnx_op("trunc_divide")
def trunc_divide(g: Graph, input: Value, other: Value) -> Any:
    if _whole(g):
        return g.Div(input, other)
    return g.Round(g.Div(g.Sub(input, g.Mod(input, other, fmod=1)), other))


@onnx_op("expm1")
def expm1(g: Graph, input: Value) -> Any:
    # exp(x) - 1 = 2 t / (1 - t) with t = tanh(x / 2), which keeps the digits of small x; for large x t rounds to 1.
    half = g.Tanh(g.Mul(input, g.constant(0.5)))
    small = g.Div(g.Mul(g.constant(2), half), g.Sub(g.constant(1), half))
    return g.Where(g.Less(g.Abs(input), g.constant(1)), small, g.Sub(g.Exp(input), g.constant(1)))


def log_of_one_plus(g: Graph, x: Value) -> Any:
    """log(1 + x) with the digits of small x: log(u) x / (u - 1) for u = 1 + x, Kahan's formula."""
    one = g.constant(1)
    u = g.Add(one, x)
    exact = g.Mul(g.Log(u), g.Div(x, g.Sub(u, one)))
    return g.Where(g.Equal(u, one), x, g.Where(g.IsInf(u), u, exact))


@onnx_op("logaddexp2")
def logaddexp2(g: Graph, input: Value, other: Value) -> Any:
    apart = g.Mul(g.Neg(g.Abs(g.Sub(input, other))), g.constant(math.log(2)))
    return g.Add(g.Max(input, other), g.Mul(g.Softplus(apart), g.constant(1 / math.log(2))))


def truncated(g: Graph, x: Value) -> Any:
    """x rounded towards zero."""
    return g.Where(g.Less(x, g.constant(0)), g.Ceil(x), g.Floor(x))


@onnx_op("round")
def rounding(g: Graph, input: Value, decimals: int) -> Any:
    if _whole(g):
        return g.Identity(input)
    if not decimals:
        return g.Round(input)
    factor = g.constant(10.0 ** abs(decimals))
    if decimals > 0:
        return g.Div(g.Round(g.Mul(input, factor)), factor)
    return g.Mul(g.Round(g.Div(input, factor)), factor)


@onnx_op("copysign")
def copysign(g: Graph, input: Value, other: Value) -> Any:
    size = g.Abs(input)
    return g.Where(_is_negative(g, other), g.Neg(size), size)


def _is_negative(g: Graph, x: Value) -> Any:
    # -0 too, whose reciprocal is -inf
    zero = g.constant(0)
    return g.Or(g.Less(x, zero), g.And(g.Equal(x, zero), g.Less(g.Reciprocal(x), zero)))


@onnx_op("sinc")
def sinc(g: Graph, input: Value) -> Any:
    angle = g.Mul(input, g.constant(math.pi))
    return g.Where(g.Equal(input, g.constant(0)), g.constant(1), g.Div(g.Sin(angle), angle))


@onnx_op("atan2")
def atan2(g: Graph, input: Value, other: Value) -> Any:
    # The angle of (other, input): that of the quotient, half a turn on where other is negative.
    zero, turn = g.constant(0), g.constant(math.pi)
    angle = g.Atan(g.Div(input, other))
    opposite = g.Where(g.Less(input, zero), g.Sub(angle, turn), g.Add(angle, turn))
    upright = g.Mul(g.Sign(input), g.constant(math.pi / 2))
    return g.Where(g.Equal(other, zero), upright, g.Where(g.Less(other, zero), opposite, angle))


@onnx_op("logit")
def logit(g: Graph, input: Value, eps: float | None) -> Any:
    if eps is not None:
        input = g.Min(g.Max(input, g.constant(eps)), g.constant(1 - eps))
    return g.Log(g.Div(input, g.Sub(g.constant(1), input)))


def _times_unless_zero(g: Graph, x: Value, factor: Value, of: Value) -> Any:
    zero = g.constant(0)
    is_zero = g.And(g.Equal(x, zero), g.Not(g.IsNaN(of)))
    return g.Where(is_zero, zero, g.Mul(x, factor))


@onnx_op("entr")
def entr(g: Graph, input: Value) -> Any:
    zero = g.constant(0)
    inside = g.Where(g.Equal(input, zero), zero, g.Neg(g.Mul(input, g.Log(input))))
    return g.Where(g.Less(input, zero), g.constant(-math.inf), inside)


map_formulas(  # nodes that round once
    {
        "neg": "Neg", "abs": "Abs", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "sqrt": "Sqrt", "div": "Div",
        "mul": lambda g, input, other: g.And(input, other) if g.out == bool_ else g.Mul(input, other),
    },
    low=FLOAT16,
)  # fmt: skip
map_formulas(
    {
        "reciprocal": "Reciprocal", "exp": "Exp", "log": "Log", "erf": "Erf", "sin": "Sin", "cos": "Cos", "tan": "Tan",
        "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh",
        "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "pow": "Pow",
        "remainder": _remainder, "trunc": truncated, "log1p": log_of_one_plus,
    }
)  # fmt: skip
map_formulas(
    {
        "rdiv": lambda g, x, other: g.Div(g.constant(other), x),
        "fmod": lambda g, x, other: g.Mod(x, other, fmod=1),
        "lerp": lambda g, x, end, weight: g.Add(x, g.Mul(weight, g.Sub(end, x))),
        "addcmul": lambda g, x, a, b, value: g.Add(x, g.Mul(g.constant(value), g.Mul(a, b))),
        "addcdiv": lambda g, x, a, b, value: g.Add(x, g.Mul(g.constant(value), g.Div(a, b))),
        "square": lambda g, x: g.Mul(x, x),
        "rsqrt": lambda g, x: g.Reciprocal(g.Sqrt(x)),
        "exp2": lambda g, x: g.Pow(g.constant(2), x),
        "log2": lambda g, x: g.Mul(g.Log(x), g.constant(1 / math.log(2))),
        "log10": lambda g, x: g.Mul(g.Log(x), g.constant(1 / math.log(10))),
        "logaddexp": lambda g, x, other: g.Add(g.Max(x, other), g.Softplus(g.Neg(g.Abs(g.Sub(x, other))))),
        "frac": lambda g, x: g.Sub(x, truncated(g, x)),
        "signbit": lambda g, x: _is_negative(g, x) if g.dtype in FLOATS else g.Less(x, g.constant(0)),
        "erfc": lambda g, x: g.Sub(g.constant(1), g.Erf(x)),
        "hypot": lambda g, x, other: g.Sqrt(g.Add(g.Mul(x, x), g.Mul(other, other))),
        "xlogy": lambda g, x, other: _times_unless_zero(g, x, g.Log(other), other),
        "xlog1py": lambda g, x, other: _times_unless_zero(g, x, log_of_one_plus(g, other), other),
    }
)

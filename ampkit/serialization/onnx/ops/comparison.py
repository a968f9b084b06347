"""Comparisons, logical operations and tests of elements."""

from __future__ import annotations

from typing import Any

from ....base.dtypes import bool_
from ..graph import Graph, Value, is_float
from ..registry import FLOAT16, onnx_op


def _comparison(name: str, kind: str, negate: bool = False) -> None:
    @onnx_op(name, low=FLOAT16)
    def build(g: Graph, input: Value, other: Value) -> Any:
        found = getattr(g, kind)(input, other)
        return g.Not(found) if negate else found


for _name, _kind in {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}.items():
    _comparison(_name, _kind)
_comparison("ne", "Equal", negate=True)


def _logical(name: str, kind: str) -> None:
    @onnx_op(name)
    def build(g: Graph, input: Value, other: Value) -> Any:
        return getattr(g, kind)(g.boolean(input), g.boolean(other))


for _name, _kind in {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}.items():
    _logical(_name, _kind)


@onnx_op("logical_not")
def logical_not(g: Graph, input: Value) -> Any:
    return g.Not(g.boolean(input))


def _bitwise(name: str, kind: str, of_bool: str) -> None:
    @onnx_op(name)
    def build(g: Graph, *inputs: Value) -> Any:
        return getattr(g, of_bool if g.out == bool_ else kind)(*inputs)


_bitwise("bitwise_and", "BitwiseAnd", "And")
_bitwise("bitwise_or", "BitwiseOr", "Or")
_bitwise("bitwise_xor", "BitwiseXor", "Xor")
_bitwise("bitwise_not", "BitwiseNot", "Not")


@onnx_op("isnan")
def isnan(g: Graph, input: Value) -> Any:
    return g.IsNaN(input) if is_float(input.dtype) else _never(g, input)


@onnx_op("isinf")
def isinf(g: Graph, input: Value) -> Any:
    return g.IsInf(input) if is_float(input.dtype) else _never(g, input)


@onnx_op("isfinite")
def isfinite(g: Graph, input: Value) -> Any:
    return g.Not(g.Or(isnan(g, input), isinf(g, input)))


@onnx_op("isposinf")
def isposinf(g: Graph, input: Value) -> Any:
    return g.IsInf(input, detect_negative=0) if is_float(input.dtype) else _never(g, input)


@onnx_op("isneginf")
def isneginf(g: Graph, input: Value) -> Any:
    return g.IsInf(input, detect_positive=0) if is_float(input.dtype) else _never(g, input)


def _never(g: Graph, x: Value) -> Any:
    return g.Not(g.Equal(x, x))


@onnx_op("isclose")
def isclose(g: Graph, input: Value, other: Value, rtol: float, atol: float, equal_nan: bool) -> Any:
    allowed = g.Add(g.constant(atol), g.Mul(g.constant(rtol), g.Abs(other)))
    near = g.And(g.LessOrEqual(g.Abs(g.Sub(input, other)), allowed), g.Not(g.IsInf(allowed)))
    found = g.Or(g.Equal(input, other), near)
    return g.Or(found, g.And(g.IsNaN(input), g.IsNaN(other))) if equal_nan else found

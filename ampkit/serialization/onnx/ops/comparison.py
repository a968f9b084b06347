"""Comparisons, logical operations and tests of elements."""

from __future__ import annotations

from typing import Any

from ....base.dtypes import bool_
from ..graph import Graph, Value, is_float
from ..registry import FLOAT16, map_formulas, onnx_op

map_formulas(
    {
        "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
        "ne": lambda g, input, other: g.Not(g.Equal(input, other)),
    },
    low=FLOAT16,
)  # fmt: skip
map_formulas(
    {
        "logical_and": lambda g, input, other: g.And(g.boolean(input), g.boolean(other)),
        "logical_or": lambda g, input, other: g.Or(g.boolean(input), g.boolean(other)),
        "logical_xor": lambda g, input, other: g.Xor(g.boolean(input), g.boolean(other)),
        "logical_not": lambda g, input: g.Not(g.boolean(input)),
        "bitwise_and": lambda g, *inputs: g.And(*inputs) if g.out == bool_ else g.BitwiseAnd(*inputs),
        "bitwise_or": lambda g, *inputs: g.Or(*inputs) if g.out == bool_ else g.BitwiseOr(*inputs),
        "bitwise_xor": lambda g, *inputs: g.Xor(*inputs) if g.out == bool_ else g.BitwiseXor(*inputs),
        "bitwise_not": lambda g, *inputs: g.Not(*inputs) if g.out == bool_ else g.BitwiseNot(*inputs),
        "isnan": lambda g, input: _test(g, "IsNaN", input),
        "isinf": lambda g, input: _test(g, "IsInf", input),
        "isfinite": lambda g, input: g.Not(g.Or(_test(g, "IsNaN", input), _test(g, "IsInf", input))),
        "isposinf": lambda g, input: _test(g, "IsInf", input, detect_negative=0),
        "isneginf": lambda g, input: _test(g, "IsInf", input, detect_positive=0),
    }
)


def _test(g: Graph, kind: str, x: Value, **attributes: Any) -> Any:
    """A test that ONNX has for floats alone; False for other numbers."""
    return getattr(g, kind)(x, **attributes) if is_float(x.dtype) else g.Not(g.Equal(x, x))


@onnx_op("isclose")
def isclose(g: Graph, input: Value, other: Value, rtol: float, atol: float, equal_nan: bool) -> Any:
    allowed = g.Add(g.constant(atol), g.Mul(g.constant(rtol), g.Abs(other)))
    near = g.And(g.LessOrEqual(g.Abs(g.Sub(input, other)), allowed), g.Not(g.IsInf(allowed)))
    found = g.Or(g.Equal(input, other), near)
    return g.Or(found, g.And(g.IsNaN(input), g.IsNaN(other))) if equal_nan else found

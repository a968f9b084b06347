"""Maximum, minimum, clamp, where and other choices between elements."""

from __future__ import annotations

import math
from typing import Any

from ....base.dtypes import finfo
from ..graph import Graph, Value, is_float
from ..registry import FLOAT16, map_formulas, onnx_op

map_formulas(
    {
        "maximum": "Max",
        "minimum": "Min",
        "where": lambda g, condition, input, other: g.Where(g.boolean(condition), input, other),
        "masked_fill": lambda g, input, mask, value: g.Where(g.boolean(mask), g.constant(value), input),
    },
    low=FLOAT16,
)
map_formulas(
    {
        "fmax": lambda g, input, other: _unless_nan(g, input, other, g.Max(input, other)),
        "fmin": lambda g, input, other: _unless_nan(g, input, other, g.Min(input, other)),
    }
)


def _unless_nan(g: Graph, a: Value, b: Value, found: Value) -> Any:
    if not is_float(g.out):
        return found
    return g.Where(g.IsNaN(a), b, g.Where(g.IsNaN(b), a, found))


@onnx_op("clamp", low=FLOAT16)
def clamp(g: Graph, input: Value, min: Value | None, max: Value | None) -> Any:
    found = input if min is None else g.Max(input, min)
    return found if max is None else g.Min(found, max)


@onnx_op("heaviside", low=FLOAT16)
def heaviside(g: Graph, input: Value, values: Value) -> Any:
    zero = g.constant(0)
    side = g.cast(g.Greater(input, zero), g.dtype)
    found = g.Where(g.Equal(input, zero), values, side)
    return g.Where(g.IsNaN(input), input, found) if is_float(g.dtype) else found


@onnx_op("nan_to_num")
def nan_to_num(g: Graph, input: Value, nan: float | None, posinf: float | None, neginf: float | None) -> Any:
    if not is_float(g.out):
        return g.Identity(input)
    limits = finfo(g.out)
    most, least = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    found = g.Where(g.IsNaN(input), g.constant(nan or 0.0), input)
    found = g.Where(g.Equal(found, g.constant(math.inf)), g.constant(most), found)
    return g.Where(g.Equal(found, g.constant(-math.inf)), g.constant(least), found)

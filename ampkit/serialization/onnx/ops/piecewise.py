"""Activations that are piecewise linear: ReLU and its relatives."""

from __future__ import annotations

from typing import Any

from ..graph import Graph, Value, is_float
from ..registry import FLOAT16, map_formulas, onnx_op

map_formulas(
    {
        "relu": lambda g, x: g.Relu(x) if is_float(g.out) else g.Max(x, g.constant(0)),
        "leaky_relu": lambda g, x, negative_slope: g.LeakyRelu(x, alpha=float(negative_slope)),
        "hardtanh": lambda g, x, min_val, max_val: g.Min(g.Max(x, g.constant(min_val)), g.constant(max_val)),
    },
    low=FLOAT16,
)
map_formulas(
    {
        "hardsigmoid": lambda g, x: g.HardSigmoid(x, alpha=1 / 6, beta=0.5),
        "hardswish": lambda g, x: g.Mul(x, g.HardSigmoid(x, alpha=1 / 6, beta=0.5)),
        "hardshrink": lambda g, x, lambd: g.Where(g.LessOrEqual(g.Abs(x), g.constant(lambd)), g.constant(0), x),
        "threshold": lambda g, x, threshold, value: g.Where(
            g.LessOrEqual(x, g.constant(threshold)), g.constant(value), x
        ),
    }
)


@onnx_op("softshrink")
def softshrink(g: Graph, input: Value, lambd: float) -> Any:
    bound = g.constant(lambd)
    return g.Sub(input, g.Max(g.Min(input, bound), g.Neg(bound)))


@onnx_op("prelu", low=FLOAT16)
def prelu(g: Graph, input: Value, weight: Value) -> Any:
    if weight.ndim == 1 and weight.shape[0] > 1 and input.ndim > 2:  # one slope for each channel
        weight = g.unsqueeze(weight, *range(1, input.ndim - 1))
    return g.PRelu(input, weight)

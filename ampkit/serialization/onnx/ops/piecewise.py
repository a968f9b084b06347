"""Activations that are piecewise linear: ReLU and its relatives."""

from __future__ import annotations

from typing import Any

from ..graph import Graph, Value, is_float
from ..registry import FLOAT16, onnx_op


@onnx_op("relu", low=FLOAT16)
def relu(g: Graph, input: Value) -> Any:
    return g.Relu(input) if is_float(g.out) else g.Max(input, g.constant(0))


@onnx_op("leaky_relu", low=FLOAT16)
def leaky_relu(g: Graph, input: Value, negative_slope: float) -> Any:
    return g.LeakyRelu(input, alpha=float(negative_slope))


@onnx_op("hardsigmoid")
def hardsigmoid(g: Graph, input: Value) -> Any:
    return g.HardSigmoid(input, alpha=1 / 6, beta=0.5)


@onnx_op("hardswish")
def hardswish(g: Graph, input: Value) -> Any:
    return g.Mul(input, g.HardSigmoid(input, alpha=1 / 6, beta=0.5))


@onnx_op("hardshrink")
def hardshrink(g: Graph, input: Value, lambd: float) -> Any:
    return g.Where(g.LessOrEqual(g.Abs(input), g.constant(lambd)), g.constant(0), input)


@onnx_op("softshrink")
def softshrink(g: Graph, input: Value, lambd: float) -> Any:
    bound = g.constant(lambd)
    return g.Sub(input, g.Max(g.Min(input, bound), g.Neg(bound)))


@onnx_op("threshold")
def threshold(g: Graph, input: Value, threshold: float, value: float) -> Any:
    return g.Where(g.LessOrEqual(input, g.constant(threshold)), g.constant(value), input)


@onnx_op("prelu", low=FLOAT16)
def prelu(g: Graph, input: Value, weight: Value) -> Any:
    if weight.ndim == 1 and weight.shape[0] > 1 and input.ndim > 2:  # one slope for each channel
        weight = g.unsqueeze(weight, *range(1, input.ndim - 1))
    return g.PRelu(input, weight)


@onnx_op("hardtanh", low=FLOAT16)
def hardtanh(g: Graph, input: Value, min_val: float, max_val: float) -> Any:
    return g.Min(g.Max(input, g.constant(min_val)), g.constant(max_val))

"""Smooth activations, and rotary position embeddings."""

from __future__ import annotations

import math
from typing import Any

from ..graph import LARGEST, Graph, Value
from ..registry import map_formulas, onnx_op


@onnx_op("rotary_embedding")
def rotary_embedding(g: Graph, input: Value, cos: Value, sin: Value, interleaved: bool) -> Any:
    axis, pairs = input.ndim - 1, cos.shape[-1]
    if interleaved:
        a, b = (g.slice(input, axis, start, 2 * pairs, 2) for start in (0, 1))
    else:
        a, b = g.slice(input, axis, 0, pairs), g.slice(input, axis, pairs, 2 * pairs)
    turned = [g.Sub(g.Mul(a, cos), g.Mul(b, sin)), g.Add(g.Mul(b, cos), g.Mul(a, sin))]
    if interleaved:
        joined = g.Concat(*(g.unsqueeze(each, axis + 1) for each in turned), axis=axis + 1)
        turned = [g.Reshape(joined, g.sizes(*input.shape[:-1], 2 * pairs))]
    rest = g.slice(input, axis, 2 * pairs, LARGEST)
    return g.Concat(*turned, rest, axis=axis)


@onnx_op("softplus")
def softplus(g: Graph, input: Value, beta: float, threshold: float) -> Any:
    scaled = g.Mul(input, g.constant(beta))
    return g.Where(g.Greater(scaled, g.constant(threshold)), input, g.Div(g.Softplus(scaled), g.constant(beta)))


def gelu_of(g: Graph, x: Value, approximate: str) -> Any:
    """x Phi(x) by erf, or by tanh of x + 0.044715 x^3: Hendrycks & Gimpel 2016, arXiv:1606.08415."""
    if approximate == "tanh":
        cubic = g.Mul(g.constant(0.044715), g.Mul(x, g.Mul(x, x)))
        inner = g.Tanh(g.Mul(g.constant(math.sqrt(2 / math.pi)), g.Add(x, cubic)))
    else:
        inner = g.Erf(g.Mul(x, g.constant(1 / math.sqrt(2))))
    return g.Mul(g.Mul(x, g.constant(0.5)), g.Add(inner, g.constant(1)))


@onnx_op("celu")
def celu(g: Graph, input: Value, alpha: float) -> Any:
    scaled = g.Elu(g.Div(input, g.constant(alpha)))
    return g.Mul(scaled, g.constant(alpha))


@onnx_op("glu")
def glu(g: Graph, input: Value, dim: int) -> Any:
    half = input.shape[dim] // 2
    left, right = g.Split(input, g.sizes(half, half), axis=dim, outputs=2)
    return g.Mul(left, g.Sigmoid(right))


map_formulas(
    {
        "sigmoid": "Sigmoid",
        "softsign": "Softsign",
        "selu": "Selu",
        "gelu": gelu_of,
        "logsigmoid": lambda g, x: g.Neg(g.Softplus(g.Neg(x))),
        "tanhshrink": lambda g, x: g.Sub(x, g.Tanh(x)),
        "silu": lambda g, x: g.Mul(x, g.Sigmoid(x)),
        "silu_mul": lambda g, x, other: g.Mul(g.Mul(x, g.Sigmoid(x)), other),
        "mish": lambda g, x: g.Mul(x, g.Tanh(g.Softplus(x))),
        "elu": lambda g, x, alpha: g.Elu(x, alpha=float(alpha)),
    }
)

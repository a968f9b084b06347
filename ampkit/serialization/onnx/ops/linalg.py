"""Matrix products, distances and einsum."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Graph, Value
from ..registry import FLOAT16, map_formulas, onnx_op
from .reduction import p_norm
from .smooth import gelu_of

map_formulas(
    {
        **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "vdot", "tensordot"), "MatMul"),
        "linear": lambda g, input, weight, bias: linear_of(g, input, weight, bias, input.ndim),
        "outer": lambda g, input, vec2: g.Mul(g.unsqueeze(input, 1), g.unsqueeze(vec2, 0)),
    },
    low=FLOAT16,
)
map_formulas({"det": "Det"})


def linear_of(g: Graph, x: Value, weight: Value, bias: Value | None, ndim: int) -> Any:
    """x weight^T + bias, of x with `ndim` axes."""
    if ndim == 2 and weight.ndim == 2:
        return g.Gemm(x, weight, bias, transB=1)
    product = g.MatMul(x, g.transpose(weight, 1, 0) if weight.ndim == 2 else weight)
    return product if bias is None else g.Add(product, bias)


@onnx_op("linear_gelu_linear", low=FLOAT16)
def linear_gelu_linear(
    g: Graph, input: Value, weight: Value, bias: Value | None, weight2: Value, bias2: Value | None, approximate: str
) -> Any:
    hidden = gelu_of(g, linear_of(g, input, weight, bias, input.ndim), approximate)
    return linear_of(g, hidden, weight2, bias2, input.ndim)


@onnx_op("addmm", "baddbmm", low=FLOAT16)
def addmm(g: Graph, input: Value, mat1: Value, mat2: Value, beta: float, alpha: float) -> Any:
    product = g.MatMul(mat1, mat2)
    product = product if alpha == 1 else g.Mul(product, g.constant(alpha))
    if not beta:
        return product
    return g.Add(input if beta == 1 else g.Mul(input, g.constant(beta)), product)


@onnx_op("einsum", low=FLOAT16)
def einsum(g: Graph, operands: list[Value], equation: str) -> Any:
    equation = equation.replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    spare = [value.ndim - len(term.replace("...", "")) for value, term in zip(operands, terms, strict=True)]
    most = max(spare)  # ONNX wants `...` to stand for as many axes in each operand
    same = [
        g.unsqueeze(value, *range(at, at + most - n)) if (at := term.find("...")) >= 0 else value
        for value, term, n in zip(operands, terms, spare, strict=True)
    ]
    return g.Einsum(*same, equation=equation)


@onnx_op("bilinear")
def bilinear(g: Graph, input1: Value, input2: Value, weight: Value, bias: Value | None) -> Any:
    product = g.Einsum(input1, weight, input2, equation="...i,oij,...j->...o")
    return product if bias is None else g.Add(product, bias)


@onnx_op("cdist")
def cdist(g: Graph, x1: Value, x2: Value, p: float) -> Any:
    rank = max(x1.ndim, x2.ndim)
    apart = g.Sub(g.unsqueeze(x1, x1.ndim - 1), g.unsqueeze(x2, x2.ndim - 2))
    return p_norm(g, apart, float(p), [rank], False)


@onnx_op("pairwise_distance")
def pairwise_distance(g: Graph, x1: Value, x2: Value, p: float, eps: float, keepdim: bool) -> Any:
    apart = g.Add(g.Sub(x1, x2), g.constant(eps))
    return p_norm(g, apart, float(p), [max(x1.ndim, x2.ndim) - 1], keepdim)


@onnx_op("cosine_similarity")
def cosine_similarity(g: Graph, x1: Value, x2: Value, dim: int, eps: float) -> Any:
    shape = np.broadcast_shapes(x1.shape, x2.shape)
    axis = [dim % len(shape)]
    both = [x if x.shape == shape else g.Expand(x, g.sizes(*shape)) for x in (x1, x2)]
    dot = g.reduce("ReduceSum", g.Mul(*both), axis)
    norms = [g.Max(g.reduce("ReduceL2", x, axis, True), g.constant(eps)) for x in both]
    return g.Div(dot, g.squeeze(g.Mul(*norms), *axis))


@onnx_op("cross")
def cross(g: Graph, input: Value, other: Value, dim: int | None) -> Any:
    shape = input.shape if input.ndim >= other.ndim else other.shape
    axis = (dim % len(shape) if dim is not None else shape.index(3)) - len(shape)
    a, b = (g.Split(x, g.ints(1, 1, 1), axis=axis, outputs=3) for x in (input, other))
    parts = [g.Sub(g.Mul(a[i], b[j]), g.Mul(a[j], b[i])) for i, j in ((1, 2), (2, 0), (0, 1))]
    return g.Concat(*parts, axis=axis)

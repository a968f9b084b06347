"""Normalization: by batch, layer, group, root mean square and neighbouring channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....base.dtypes import DType
from ....base.errors import ArgumentError
from ..graph import Graph, Value
from ..registry import onnx_op
from ..trace import WHERE
from .reduction import p_norm


@onnx_op("layer_norm")
def layer_norm(
    g: Graph, input: Value, normalized_shape: Any, weight: Value | None, bias: Value | None, eps: float
) -> Any:
    return _layer_norm(g, input, _shape(normalized_shape), weight, bias, eps)


def _shape(normalized_shape: Any) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


def _layer_norm(g: Graph, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float) -> Any:
    scale = weight or g.constant(np.ones(shape, g.dtype))
    return g.LayerNormalization(x, scale, bias, axis=-len(shape), epsilon=float(eps))


@onnx_op("add_layer_norm")
def add_layer_norm(
    g: Graph, residual: Value, branch: Value, weight: Value | None, bias: Value | None, normalized_shape: Any,
    eps: float, dropout_p: float, draw: Any, normed: DType | None,
) -> Any:  # fmt: skip
    if draw is not None:
        raise ArgumentError(WHERE, "layers without dropout", f"dropout_p={dropout_p} of {g.label}")
    total = g.Add(residual, branch)
    if normed is None:
        return _layer_norm(g, total, _shape(normalized_shape), weight, bias, eps)
    rounded = g.cast(Value(total.name, g.dtype), g.out)
    norm = _layer_norm(g, g.cast(rounded, g.dtype), _shape(normalized_shape), weight, bias, eps)
    return rounded, Value(norm.name, g.dtype)


@onnx_op("rms_norm")
def rms_norm(g: Graph, input: Value, normalized_shape: Any, weight: Value | None, eps: float | None) -> Any:
    axes = list(range(input.ndim - len(_shape(normalized_shape)), input.ndim))
    square = g.reduce("ReduceMean", g.Mul(input, input), axes, True)
    least = float(np.finfo(g.dtype).eps) if eps is None else eps
    found = g.Mul(input, g.Reciprocal(g.Sqrt(g.Add(square, g.constant(least)))))
    return found if weight is None else g.Mul(found, weight)


@onnx_op("group_norm")
def group_norm(g: Graph, input: Value, num_groups: int, weight: Value | None, bias: Value | None, eps: float) -> Any:
    ones, zeros = g.constant(np.ones(num_groups, g.dtype)), g.constant(np.zeros(num_groups, g.dtype))
    rows = g.reshape(input, 0, num_groups, -1)
    found = g.reshape(g.InstanceNormalization(rows, ones, zeros, epsilon=float(eps)), *input.shape)
    return _scaled(g, found, weight, bias, input.ndim)


def _scaled(g: Graph, x: Value, weight: Value | None, bias: Value | None, ndim: int) -> Any:
    """x weight + bias, by channel: axis 1 of `ndim`."""
    axes = range(1, ndim - 1)
    x = x if weight is None else g.Mul(x, g.unsqueeze(weight, *axes))
    return x if bias is None else g.Add(x, g.unsqueeze(bias, *axes))


@onnx_op("batch_norm")
def batch_norm(
    g: Graph, input: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, residual: Value | None, eps: float, relu: bool,
) -> Any:  # fmt: skip
    if running_mean is None or running_var is None:
        axes = [0, *range(2, input.ndim)]
        mean = g.reduce("ReduceMean", input, axes, True)
        centered = g.Sub(input, mean)
        square = g.reduce("ReduceMean", g.Mul(centered, centered), axes, True)
        found = g.Div(centered, g.Sqrt(g.Add(square, g.constant(eps))))
        found = _scaled(g, found, weight, bias, input.ndim)
        statistics = [g.squeeze(each, *axes) for each in (mean, square)]
    else:
        channels = running_mean.shape[0]
        scale = weight or g.constant(np.ones(channels, g.dtype))
        shift = bias or g.constant(np.zeros(channels, g.dtype))
        found = g.BatchNormalization(input, scale, shift, running_mean, running_var, epsilon=float(eps))
        statistics = []
    found = found if residual is None else g.Add(found, residual)
    return [g.Relu(found) if relu else found, *statistics]


@onnx_op("normalize")
def normalize(g: Graph, input: Value, p: float, dim: int, eps: float) -> Any:
    axes = [dim % input.ndim] if input.ndim else []
    return g.Div(input, g.Max(p_norm(g, input, float(p), axes, True), g.constant(eps)))


@onnx_op("local_response_norm")
def local_response_norm(g: Graph, input: Value, size: int, alpha: float, beta: float, k: float) -> Any:
    # By hand: of an even number of neighbours ONNX's LRN takes the other one more.
    flat = g.reshape(input, *input.shape[:2], math.prod(input.shape[2:]))
    channels = g.unsqueeze(g.Mul(flat, flat), 1)
    padded = g.Pad(channels, g.ints(0, 0, size // 2, 0, 0, 0, (size - 1) // 2, 0), g.constant(0))
    mean = g.squeeze(g.AveragePool(padded, kernel_shape=(size, 1)), 1)
    scale = g.Pow(g.Add(g.Mul(mean, g.constant(alpha)), g.constant(k)), g.constant(-beta))
    return g.reshape(g.Mul(flat, scale), *input.shape)

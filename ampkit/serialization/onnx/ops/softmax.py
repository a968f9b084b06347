"""Softmax, its logarithm, and log-sum-exp."""

from __future__ import annotations

from typing import Any

from ..graph import Graph, Value
from ..registry import onnx_op
from .reduction import axes_of


@onnx_op("softmax")
def softmax(g: Graph, input: Value, dim: int, dtype: Any) -> Any:
    return g.Softmax(input, axis=dim) if input.ndim else g.Exp(g.Sub(input, input))


@onnx_op("log_softmax")
def log_softmax(g: Graph, input: Value, dim: int, dtype: Any) -> Any:
    return g.LogSoftmax(input, axis=dim) if input.ndim else g.Sub(input, input)


@onnx_op("logsumexp")
def logsumexp(g: Graph, input: Value, dim: Any, keepdim: bool) -> Any:
    return g.reduce("ReduceLogSumExp", input, axes_of(dim, input.ndim), keepdim)

"""Casts, copies, and copies to a device."""

from __future__ import annotations

from typing import Any

from ..graph import Graph, Value
from ..registry import MOVED, onnx_op


@onnx_op("to", low=MOVED)
def to(g: Graph, input: Value, dtype: Any) -> Any:
    return g.cast(input, g.out)


@onnx_op("to_device", low=MOVED)
def to_device(g: Graph, input: Value, device: Any) -> Any:
    return input


@onnx_op("clone", low=MOVED)
def clone(g: Graph, input: Value, memory_format: Any) -> Any:
    return input

"""interpolate as sums of gathered elements, and sampling at points of a grid."""

from __future__ import annotations

from typing import Any

from ....base.dtypes import int64
from ..graph import Graph, Value
from ..registry import onnx_op


@onnx_op("interpolate")
def interpolate(g: Graph, input: Value, axes: Any) -> Any:
    found: Any = input
    for i, taps in enumerate(axes, -len(axes)):
        axis = input.ndim + i
        parts = [g.Gather(found, g.constant(index, int64, f"{g.prefix}/index"), axis=axis) for index in taps.indices]
        if taps.weights is None:
            found = parts[0]
            continue
        weights = [g.constant(w.reshape(-1, *(1,) * (-1 - i)), g.dtype, f"{g.prefix}/weight") for w in taps.weights]
        found = g.Mul(parts[0], weights[0])
        for part, weight in zip(parts[1:], weights[1:], strict=True):
            found = g.Add(found, g.Mul(part, weight))
    return found


@onnx_op("grid_sample")
def grid_sample(g: Graph, input: Value, grid: Value, mode: str, padding_mode: str, align_corners: bool | None) -> Any:
    names = {"bilinear": "linear", "bicubic": "cubic"} if g.opset >= 20 else {}
    corners = int(bool(align_corners))
    return g.GridSample(input, grid, mode=names.get(mode, mode), padding_mode=padding_mode, align_corners=corners)

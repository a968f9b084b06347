"""Pooling by moving windows, and by windows that cover the input evenly."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

from ....base.conv_geometry import ConvGeometry
from ....base.dtypes import int64
from ....ops.nn.adaptive_pool import adaptive_size, adaptive_windows
from ....ops.nn.conv_geometry import conv_geometry
from ..graph import Graph, Value
from ..registry import FLOAT16, onnx_op
from .conv import window_attributes


def _geometry(x: Value, axes: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> ConvGeometry:
    stride = kernel if stride is None or stride in ((), []) else stride
    return conv_geometry("pool", kernel, stride, padding, dilation, x.shape[-axes:], ceil)


def _batched(g: Graph, x: Value, axes: int) -> Any:
    return x if x.ndim == axes + 2 else g.unsqueeze(x, 0)


def _unbatched(g: Graph, found: Value, x: Value, axes: int) -> Any:
    return found if x.ndim == axes + 2 else g.squeeze(found, 0)


def _max_pool(axes: int) -> None:
    @onnx_op(f"max_pool{axes}d", low=FLOAT16)
    def build(
        g: Graph, input: Value, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
        return_indices: bool,
    ) -> Any:  # fmt: skip
        geometry = _geometry(input, axes, kernel_size, stride, padding, dilation, ceil_mode)
        x = _batched(g, input, axes)
        if not return_indices and any(max(p) >= k for p, k in zip(geometry.padding, geometry.kernel, strict=True)):
            x = _padded(g, x, geometry, -inf)  # more than the node pads
            geometry = geometry._replace(padding=((0, 0),) * axes)
        found = g.MaxPool(x, **window_attributes(geometry), outputs=1 + bool(return_indices))
        if not return_indices:
            return _unbatched(g, found, input, axes)
        values, indices = (_unbatched(g, each, input, axes) for each in found)
        area = prod(input.shape[-axes:])  # ONNX counts the elements of all channels and samples
        return values, g.Mod(indices, g.constant(area, int64))


def _avg_pool(axes: int) -> None:
    @onnx_op(f"avg_pool{axes}d")
    def build(
        g: Graph, input: Value, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
        divisor_override: int | None,
    ) -> Any:  # fmt: skip
        plain = _geometry(input, axes, kernel_size, stride, padding, 1, False)
        geometry = _geometry(input, axes, kernel_size, stride, padding, 1, ceil_mode)
        x, whole = _batched(g, input, axes), count_include_pad or divisor_override is not None
        if whole:  # pads count, but not what ceil_mode adds beyond them
            x = _padded(g, x, plain)
            pairs = zip(geometry.padding, plain.padding, strict=True)
            geometry = geometry._replace(padding=tuple((0, now[1] - before[1]) for now, before in pairs))
        attributes = window_attributes(geometry)
        del attributes["dilations"]  # all 1; ONNX has them from version 19
        found = g.AveragePool(x, **attributes)
        if divisor_override is not None:
            found = g.Mul(found, g.constant(prod(geometry.kernel) / divisor_override))
        return _unbatched(g, found, input, axes)


def _padded(g: Graph, x: Value, geometry: ConvGeometry, value: float = 0) -> Any:
    before, after = zip(*geometry.padding, strict=True)
    if not any((*before, *after)):
        return x
    return g.Pad(x, g.ints(0, 0, *before, 0, 0, *after), g.constant(value))


for _axes in (2, 3):
    _max_pool(_axes)
    _avg_pool(_axes)


def _adaptive_avg(axes: int) -> None:
    @onnx_op(f"adaptive_avg_pool{axes}d")
    def build(g: Graph, input: Value, output_size: Any) -> Any:
        size = input.shape[-axes:]
        out = adaptive_size(output_size, size)
        x = _batched(g, input, axes)
        if max(out) == 1:
            return _unbatched(g, g.GlobalAveragePool(x), input, axes)
        if not any(n % m for n, m in zip(size, out, strict=True)):
            kernel = tuple(n // m for n, m in zip(size, out, strict=True))
            return _unbatched(g, g.AveragePool(x, kernel_shape=kernel, strides=kernel), input, axes)
        for axis, (n, m) in enumerate(zip(size, out, strict=True), 2):
            x = _means_along(g, x, axis, axes + 2, n, m)
        return _unbatched(g, x, input, axes)


def _means_along(g: Graph, x: Value, axis: int, rank: int, n: int, m: int) -> Any:
    """The mean of each of m windows over the n elements of an axis: a product with a matrix [n, m]."""
    first, end = adaptive_windows(n, m)
    pixel = np.arange(n)[:, None]
    shares = ((pixel >= first) & (pixel < end)) / (end - first)
    order = [a for a in range(rank) if a != axis] + [axis]
    found = g.MatMul(g.transpose(x, *order), g.constant(shares.astype(g.dtype), g.dtype))
    return g.transpose(found, *(order.index(a) for a in range(rank)))


_adaptive_avg(2)
_adaptive_avg(3)


@onnx_op("adaptive_max_pool", low=FLOAT16)
def adaptive_max_pool(g: Graph, input: Value, output_size: Sequence[int]) -> Any:
    """The flat index of the maximum of each window: its place in a table of the elements of all windows."""
    axes = len(output_size)
    size, lead = input.shape[-axes:], input.shape[:-axes]
    table = _window_elements(size, output_size)
    elements = g.Gather(g.reshape(input, *lead, prod(size)), g.constant(table, int64), axis=len(lead))
    place = g.ArgMax(elements, axis=-1, keepdims=1)
    spread = g.Expand(g.constant(table, int64), g.Shape(elements))
    return g.reshape(g.GatherElements(spread, place, axis=-1), *lead, *output_size)


def _window_elements(size: Sequence[int], windows: Sequence[int]) -> Any:
    """[windows, elements]: the flat indices of the elements of each window; smaller ones repeat their last."""
    flat: Any = np.zeros((1, 1), np.int64)
    for n, m in zip(size, windows, strict=True):
        first, end = adaptive_windows(n, m)
        taps = np.minimum(first[:, None] + np.arange((end - first).max()), end[:, None] - 1)
        flat = (flat[:, None, :, None] * n + taps[None, :, None, :]).reshape(len(flat) * m, -1)
    return flat

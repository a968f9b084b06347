"""Convolutions, transposed convolutions, and the windows that they read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....base.conv_geometry import ConvGeometry
from ....ops.nn.conv import geometry_of, transposed_geometry
from ..graph import Graph, Value
from ..registry import FLOAT16, onnx_op


def _convolution(name: str) -> None:
    @onnx_op(name, low=FLOAT16)
    def build(
        g: Graph, input: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Any:
        geometry = geometry_of(name, input, weight, stride, padding, dilation)
        return _batched(g, "Conv", input, weight, bias, geometry, group=groups)


def _transposed_convolution(name: str) -> None:
    @onnx_op(name, low=FLOAT16)
    def build(
        g: Graph, input: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, output_padding: Any,
        groups: int, dilation: Any,
    ) -> Any:  # fmt: skip
        geometry = transposed_geometry(name, input, weight, stride, padding, output_padding, dilation)
        axes = weight.ndim - 2
        extra = (output_padding,) * axes if isinstance(output_padding, int) else tuple(output_padding)
        return _batched(
            g, "ConvTranspose", input, weight, bias, geometry, group=groups, output_padding=(extra * axes)[:axes]
        )


for _axes in (1, 2, 3):
    _convolution(f"conv{_axes}d")
    _transposed_convolution(f"conv_transpose{_axes}d")


def window_attributes(geometry: ConvGeometry) -> dict[str, Any]:
    """The attributes of a node that moves a window: kernel, strides, dilations, and pads, those before first."""
    before, after = zip(*geometry.padding, strict=True)
    found = {"kernel_shape": geometry.kernel, "strides": geometry.stride, "dilations": geometry.dilation}
    return {**found, "pads": (*before, *after)}


def _batched(
    g: Graph, kind: str, x: Value, weight: Value, bias: Value | None, geometry: ConvGeometry, **attributes: Any
) -> Any:
    single = x.ndim < weight.ndim
    x = g.unsqueeze(x, 0) if single else x
    found = getattr(g, kind)(x, weight, bias, **window_attributes(geometry), **attributes)
    return g.squeeze(found, 0) if single else found


def _one_hot_kernels(g: Graph, channels: int, kernel: tuple[int, ...]) -> Value:
    """Weights that pick each element of a window, for each channel: [channels elements, 1, *kernel]."""
    count = int(np.prod(kernel))
    each = np.eye(count, dtype=g.dtype).reshape(count, 1, *kernel)
    return g.constant(np.tile(each, (channels, *(1,) * (len(kernel) + 1))))


@onnx_op("unfold", low=FLOAT16)
def unfold(g: Graph, input: Value, geometry: ConvGeometry) -> Any:
    axes = len(geometry.kernel)
    batched = input.ndim == axes + 2
    channels = input.shape[-axes - 1]
    x = input if batched else g.unsqueeze(input, 0)
    weight = _one_hot_kernels(g, channels, geometry.kernel)
    found = g.Conv(x, weight, group=channels, **window_attributes(geometry))
    rows, length = weight.shape[0], int(np.prod(geometry.output_size))
    return g.reshape(found, 0, rows, length) if batched else g.reshape(found, rows, length)


@onnx_op("fold")
def fold(g: Graph, input: Value, geometry: ConvGeometry) -> Any:
    rows = input.shape[-2]
    channels = rows // int(np.prod(geometry.kernel))
    x = g.reshape(input, input.shape[0] if input.ndim == 3 else 1, rows, *geometry.output_size)
    weight = _one_hot_kernels(g, channels, geometry.kernel)
    places = zip(geometry.input_size, geometry.output_size, geometry.stride, geometry.dilation, geometry.kernel,
                 geometry.padding, strict=True)  # fmt: skip
    left = [n + sum(p) - ((m - 1) * s + d * (k - 1) + 1) for n, m, s, d, k, p in places]  # that no window reaches
    attributes = window_attributes(geometry)
    found = g.ConvTranspose(x, weight, group=channels, output_padding=left, **attributes)
    return found if input.ndim == 3 else g.squeeze(found, 0)

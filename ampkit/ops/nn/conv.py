"""Convolution and transposed convolution of sequences, images and volumes.

All share the products of `conv_products`. A transposed convolution is the input gradient of a convolution run forward.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import int_tuple
from ..named import named
from ..shape.view import permute
from .conv_geometry import batched, conv_geometry, fold, unbatched, unfold
from .conv_products import convolve, input_gradient, weight_gradient

__all__ = [
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "fold",
    "unfold",
]  # fmt: skip


def _bias_gradient(dy: Array) -> Array:
    return blocked_sum(dy, (0, *range(2, dy.ndim)))


def conv_backward(dy, saved, needs, stride, padding, dilation, groups):
    geometry, ndim = saved.geometry, dy.ndim
    axes = len(geometry.input_size)
    dy = batched(dy, axes)
    dx = unbatched(input_gradient(dy, saved.weight, geometry, groups), ndim) if needs[0] else None
    dw = weight_gradient(batched(saved.input, axes), dy, geometry, groups) if needs[1] else None
    return dx, dw, _bias_gradient(dy) if needs[2] else None


def conv_transpose_backward(dy, saved, needs, stride, padding, output_padding, groups, dilation):
    geometry, ndim = saved.geometry, dy.ndim
    axes = len(geometry.input_size)
    dy = batched(dy, axes)
    dx = unbatched(convolve(dy, saved.weight, geometry, groups), ndim) if needs[0] else None
    dw = weight_gradient(dy, batched(saved.input, axes), geometry, groups) if needs[1] else None
    return dx, dw, _bias_gradient(dy) if needs[2] else None


def geometry_of(where: str, input: Array, weight: Array, stride: Any, padding: Any, dilation: Any) -> ConvGeometry:
    """The geometry of a convolution's arguments. Raises as `conv_geometry`."""
    return conv_geometry(where, weight.shape[2:], stride, padding, dilation, input.shape[2 - weight.ndim :])


def transposed_geometry(
    where: str, input: Array, weight: Array, stride: Any, padding: Any, output_padding: Any, dilation: Any
) -> ConvGeometry:
    """The geometry of the convolution that maps a transposed convolution's output to its input.

    Raises as `conv_geometry`, and ArgumentError for an output_padding that is not smaller than the stride.
    """
    axes = weight.ndim - 2
    size, kernel = input.shape[-axes:], weight.shape[2:]
    stride, dilation = int_tuple(where, "stride", stride, 1, axes), int_tuple(where, "dilation", dilation, 1, axes)
    pads = int_tuple(where, "padding", padding, 0, axes)
    extra = int_tuple(where, "output_padding", output_padding, 0, axes)
    if any(e >= s for e, s in zip(extra, stride, strict=True)):
        raise ArgumentError(where, f"output_padding smaller than stride {stride}", f"{extra}")
    arguments = zip(size, stride, pads, dilation, kernel, extra, strict=True)
    output_size = tuple([(n - 1) * s - 2 * p + d * (k - 1) + 1 + e for n, s, p, d, k, e in arguments])
    if min(output_size) < 1:
        raise ShapeError(where, f"padding that leaves a pixel of {list(size)}", f"{pads}")
    return conv_geometry(where, kernel, stride, pads, dilation, output_size)


def _check(where: str, axes: str, input: Any, weight: Any, bias: Any, groups: Any, weight_axis: int = 1) -> None:
    # weight_axis: the axis of the weight that is the input's channels; 0 for a transposed convolution.
    shape, kernel, rank = np.shape(input), np.shape(weight), axes.count(",") + 2
    if len(shape) not in (rank, rank + 1):
        raise ShapeError(where, f"input [N, C, {axes}] or [C, {axes}]", f"input {list(shape)}")
    if len(kernel) != rank + 1:
        raise ShapeError(where, f"weight of {rank + 1} axes", f"weight {list(kernel)}")
    if not isinstance(groups, int) or groups < 1 or kernel[0] % groups:
        raise ArgumentError(where, f"groups that divide {kernel[0]}, of weight {list(kernel)}", repr(groups))
    in_channels, out_channels = kernel[1] * groups, kernel[0]
    if weight_axis == 0:
        in_channels, out_channels = out_channels, in_channels
    if shape[-rank] != in_channels:
        grouped = f" in {groups} groups" if groups > 1 else ""
        need = f"input [N, {in_channels}, {axes}] for weight {list(kernel)}{grouped}"
        raise ShapeError(where, need, f"input {list(shape)}")
    if bias is not None and np.shape(bias) != (out_channels,):
        raise ShapeError(where, f"bias [{out_channels}] for weight {list(kernel)}", f"bias {list(np.shape(bias))}")


def _convolution(name: str, axes: str, doc: str) -> Op:
    @op(cast=Cast.LOW)
    @named(name, doc)
    def convolution(
        input: Array, weight: Array, bias: Array | None = None, stride=1, padding=0, dilation=1, groups: int = 1
    ):
        geometry = geometry_of(name, input, weight, stride, padding, dilation)
        out = convolve(batched(input, weight.ndim - 2), weight, geometry, groups)
        return _unbatched_plus(out, bias, input), Saved(input=input, weight=weight, geometry=geometry)

    @convolution.check
    def check(input, weight, bias, stride, padding, dilation, groups):
        _check(name, axes, input, weight, bias, groups)
        geometry_of(name, input, weight, stride, padding, dilation)

    convolution.backward(input="weight", weight="input")(conv_backward)
    return convolution


def _transposed_convolution(name: str, axes: str, doc: str) -> Op:
    @op(cast=Cast.LOW)
    @named(name, doc)
    def convolution(
        input: Array, weight: Array, bias: Array | None = None, stride=1, padding=0, output_padding=0, groups: int = 1,
        dilation=1,
    ):  # fmt: skip
        geometry = transposed_geometry(name, input, weight, stride, padding, output_padding, dilation)
        out = input_gradient(batched(input, weight.ndim - 2), weight, geometry, groups)
        return _unbatched_plus(out, bias, input), Saved(input=input, weight=weight, geometry=geometry)

    @convolution.check
    def check(input, weight, bias, stride, padding, output_padding, groups, dilation):
        _check(name, axes, input, weight, bias, groups, weight_axis=0)
        transposed_geometry(name, input, weight, stride, padding, output_padding, dilation)

    convolution.backward(input="weight", weight="input")(conv_transpose_backward)
    return convolution


def _unbatched_plus(out: Array, bias: Array | None, input: Array) -> Array:
    if bias is not None:
        out += bias.reshape(-1, *(1,) * (out.ndim - 2))
    return unbatched(out, input.ndim)


conv1d = _convolution(
    "conv1d",
    "L",
    """1-D convolution: `conv2d` of sequences.

    input [N, C, L] or [C, L], weight [O, C / groups, K], bias [O] -> [N, O, L']; precision and errors as `conv2d`.
    """,
)
conv2d = _convolution(
    "conv2d",
    "H, W",
    """2-D convolution: the cross-correlation of images with kernels, plus bias.

    input [N, C, H, W] or [C, H, W], weight [O, C / groups, KH, KW], bias [O] -> [N, O, H', W']. padding may be 'same'
    (stride 1) or 'valid'. Products are exact, summed in float32 with the bias, and rounded once.
    Raises ShapeError for shapes that do not fit, ArgumentError for arguments out of range.
    Chellapilla, Puri, Simard 2006, "High performance convolutional neural networks for document processing", sec. 3.
    """,
)
conv3d = _convolution(
    "conv3d",
    "D, H, W",
    """3-D convolution: `conv2d` of volumes.

    input [N, C, D, H, W] or [C, D, H, W], weight [O, C / groups, KD, KH, KW], bias [O] -> [N, O, D', H', W']; precision
    and errors as `conv2d`.
    """,
)
conv_transpose1d = _transposed_convolution(
    "conv_transpose1d",
    "L",
    """The transpose of `conv1d`: input [N, O, L] or [O, L], weight [O, C / groups, K], bias [C] -> [N, C, L'].

    See `conv_transpose2d`.
    """,
)
conv_transpose2d = _transposed_convolution(
    "conv_transpose2d",
    "H, W",
    """The transpose of `conv2d`, which its input gradient computes: the sum of the kernels weighted by each pixel.

    input [N, O, H, W] or [O, H, W], weight [O, C / groups, KH, KW], bias [C] -> [N, C, H', W']. output_padding, smaller
    than the stride, adds rows and columns at the end. Precision and errors as `conv2d`.
    Dumoulin, Visin 2016, arXiv:1603.07285, ch. 4.
    """,
)
conv_transpose3d = _transposed_convolution(
    "conv_transpose3d",
    "D, H, W",
    """The transpose of `conv3d`: input [N, O, D, H, W] or [O, D, H, W], weight [O, C / groups, KD, KH, KW], bias [C].

    See `conv_transpose2d`.
    """,
)


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """`conv1d` of sequences in the order time, batch, channels.

    input [T, N, C], weight [K, C, O], bias [O] -> [T', N, O], T' = T + 2 pad - K + 1. Precision as `conv1d`. Raises
    ShapeError for shapes that do not fit.
    """
    for name, tensor, shape in (("input", input, "[T, N, C]"), ("weight", weight, "[K, C, O]")):
        if tensor.ndim != 3:
            raise ShapeError("conv_tbc", f"{name} {shape}", f"{list(tensor.shape)}")
    out = conv1d(permute(input, (1, 2, 0)), permute(weight, (2, 1, 0)), bias, padding=pad)
    return permute(out, (2, 0, 1))

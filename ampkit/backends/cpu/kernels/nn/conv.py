"""CPU kernels of the convolutions: oneDNN's, over channels-last images and volumes.

Sequences are images of one row. The forward of a transposed convolution is the input gradient of a convolution, and
its gradients are that convolution's output and weight gradient. Without fast 16-bit convolutions on this CPU, operands
are cast to float32 and the result is rounded.
"""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.channels_last import nhwc, to_channels_last
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.kernels.reduction.reductions import column_sums
from ampkit.backends.cpu.native.arrays import FLOATS
from ampkit.backends.cpu.onednn.convolution import Conv, convolve, input_gradient, weight_gradient
from ampkit.backends.cpu.onednn.library import has_fast_conv, library
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn import conv
from ampkit.ops.nn.conv_geometry import ConvGeometry, from_2d, to_2d

MIN_MACS = 1 << 15  # multiply-adds; below, the reference is as fast


def _compute_dtype(dtype: DType) -> DType:
    return dtype if has_fast_conv(dtype) else float32


def _conv(
    images: tuple[int, ...], kernels: tuple[int, ...], w: ConvGeometry, groups: int, stored: DType, out: DType
) -> Conv:
    kind = _compute_dtype(stored)
    return Conv(images, kernels, w, groups, kind, out if kind == stored else kind)


def _is_profitable(array: HostArray, times: int) -> bool:
    # times: how often each element is multiplied, about
    return array.size * times >= MIN_MACS and array.dtype in FLOATS and library() is not None


def _fits(array: HostArray, kernels: HostArray, *more: Any) -> bool:
    return array.dtype == kernels.dtype and _is_profitable(array, kernels.size // max(kernels.shape[1], 1))


def _back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
    if needs[0]:
        return _fits(dy, saved.weight)
    return bool(needs[1]) and _is_profitable(dy, saved.input.shape[-1 - len(saved.geometry.input_size)])


def _bias_gradient(grad: HostArray, need: DType | None) -> HostArray | None:
    return column_sums(nhwc(grad), need)


def _weight_buffer(grad_buffers: Any, axes: int, need: Any) -> HostArray | None:
    return grad_buffers[1] if need == float32 and axes > 1 else None


def _convolution(op: Any) -> None:
    """Register the kernels of a convolution, over sequences, images or volumes."""

    def forward(
        input: HostArray, weight: HostArray, bias: HostArray | None, stride: Any, padding: Any, dilation: Any,
        groups: int, *, dtype: DType, versions: Any,
    ) -> Any:  # fmt: skip
        w = conv.geometry_of(op.name, input, weight, stride, padding, dilation)
        axes = len(w.input_size)
        images = to_2d(input, axes)
        c = _conv(images.shape, to_2d(weight, axes).shape, w.as_2d, groups, input.dtype, dtype)
        out = convolve(images, weight, bias, c, versions[1])
        if out is None:
            return NotImplemented
        return from_2d(in_format(out, dtype), input.ndim, axes), Saved(input=input, weight=weight, geometry=w)

    def backward(
        dy: HostArray, saved: Saved, needs: Any, stride: Any, padding: Any, dilation: Any, groups: int, versions: Any,
        grad_buffers: Any,
    ) -> Any:  # fmt: skip
        w, axes = saved.geometry.as_2d, len(saved.geometry.input_size)
        grad, dx, dw = to_channels_last(to_2d(dy, axes), _compute_dtype(dy.dtype)), None, None
        if needs[0]:
            shape = (len(grad), saved.weight.shape[1] * groups, *w.input_size)
            c = _conv(shape, to_2d(saved.weight, axes).shape, w, groups, dy.dtype, needs[0])
            dx = input_gradient(grad, saved.weight, c, versions[1])
            if dx is None:
                return NotImplemented
            dx = from_2d(in_format(dx, needs[0]), dy.ndim, axes)
        if needs[1]:
            images = to_2d(saved.input, axes)
            shape = (grad.shape[1], images.shape[1] // groups, *w.kernel)
            c = _conv(images.shape, shape, w, groups, dy.dtype, needs[1])
            dw = weight_gradient(images, grad, c, _weight_buffer(grad_buffers, axes, needs[1]))
            if dw is None:
                return NotImplemented
            dw = from_2d(in_format(dw, needs[1]), axes + 2, axes)
        return dx, dw, _bias_gradient(grad, needs[2])

    _register(op, forward, backward)


def _transposed_convolution(op: Any) -> None:
    """Register the kernels of a transposed convolution."""

    def forward(
        input: HostArray, weight: HostArray, bias: HostArray | None, stride: Any, padding: Any, output_padding: Any,
        groups: int, dilation: Any, *, dtype: DType, versions: Any,
    ) -> Any:  # fmt: skip
        w = conv.transposed_geometry(op.name, input, weight, stride, padding, output_padding, dilation)
        axes = len(w.input_size)
        output, shape = to_2d(input, axes), (weight.shape[1] * groups, *w.as_2d.input_size)
        wide = dtype if bias is None else float32  # rounded once: after the bias, if there is one
        c = _conv((len(output), *shape), to_2d(weight, axes).shape, w.as_2d, groups, input.dtype, wide)
        out = input_gradient(output, weight, c, versions[1])
        if out is None:
            return NotImplemented
        if bias is not None:
            out += in_format(bias, float32).reshape(-1, *(1,) * (out.ndim - 2))
        return from_2d(in_format(out, dtype), input.ndim, axes), Saved(input=input, weight=weight, geometry=w)

    def backward(
        dy: HostArray, saved: Saved, needs: Any, stride: Any, padding: Any, output_padding: Any, groups: int,
        dilation: Any, versions: Any, grad_buffers: Any,
    ) -> Any:  # fmt: skip
        w, axes = saved.geometry.as_2d, len(saved.geometry.input_size)
        images, dx, dw = to_channels_last(to_2d(dy, axes), _compute_dtype(dy.dtype)), None, None
        if needs[0]:
            c = _conv(images.shape, to_2d(saved.weight, axes).shape, w, groups, dy.dtype, needs[0])
            dx = convolve(images, saved.weight, None, c, versions[1])
            if dx is None:
                return NotImplemented
            dx = from_2d(in_format(dx, needs[0]), dy.ndim, axes)
        if needs[1]:
            output = to_2d(saved.input, axes)
            shape = (output.shape[1], images.shape[1] // groups, *w.kernel)
            c = _conv(images.shape, shape, w, groups, dy.dtype, needs[1])
            dw = weight_gradient(images, output, c, _weight_buffer(grad_buffers, axes, needs[1]))
            if dw is None:
                return NotImplemented
            dw = from_2d(in_format(dw, needs[1]), axes + 2, axes)
        return dx, dw, _bias_gradient(images, needs[2])

    _register(op, forward, backward)


def _register(op: Any, forward: Any, backward: Any) -> None:
    forward.__name__, backward.__name__ = f"{op.name}_cpu", f"{op.name}_backward_cpu"
    op.on("cpu", when=_fits, wants_cache=True)(forward)
    op.on_backward("cpu", when=_back_fits, wants_cache=True)(backward)


for _op in (conv.conv1d, conv.conv2d, conv.conv3d):
    _convolution(_op)
for _op in (conv.conv_transpose1d, conv.conv_transpose2d, conv.conv_transpose3d):
    _transposed_convolution(_op)

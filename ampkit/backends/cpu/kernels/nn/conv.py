"""Kernels of the convolutions: oneDNN's three products, over images and volumes that lie channels-last.

Sequences are images of one row. A transposed convolution is the gradient of a convolution's images run forward; its
own gradients are the other two products. Where the machine has no units for them in a 16-bit format, images and kernels
are widened and the result is rounded.
"""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.channels_last import last, turned
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.convolution import Conv, convolve, image_gradient, kernel_gradient
from ampkit.backends.cpu.onednn.gemm import column_sums
from ampkit.backends.cpu.onednn.library import convolves, library
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.backends.cpu.onednn.reorder import FORMATS
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn import conv
from ampkit.ops.nn.conv_geometry import ConvGeometry, from_2d, to_2d

WORTH = 1 << 15  # multiplications; below, NumPy's own code takes as long


def _computed(dtype: DType) -> DType:
    return dtype if convolves(dtype) else float32


def _conv(
    images: tuple[int, ...], kernels: tuple[int, ...], w: ConvGeometry, groups: int, stored: DType, out: DType
) -> Conv:
    # Computed in float32 where the machine does not multiply the format that the operands are stored in.
    kind = _computed(stored)
    return Conv(images, kernels, w, groups, kind, out if kind == stored else kind)


def _worth(array: HostArray, times: int) -> bool:
    # times: about how often each element of the array is multiplied
    return array.size * times >= WORTH and array.dtype in FORMATS and library() is not None


def _fits(array: HostArray, kernels: HostArray, *more: Any) -> bool:
    return array.dtype == kernels.dtype and _worth(array, kernels.size // max(kernels.shape[1], 1))


def _back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
    if needs[0]:
        return _fits(dy, saved.weight)
    return bool(needs[1]) and _worth(dy, saved.input.shape[-1 - len(saved.geometry.input_size)])


def _bias_gradient(slope: HostArray, need: DType | None) -> HostArray | None:
    return column_sums(last(slope), need)


def _home(grad_buffers: Any, axes: int, need: Any) -> HostArray | None:
    return grad_buffers[1] if need == float32 and axes > 1 else None


def _convolution(op: Any) -> None:
    """The kernels of a convolution, for images of any number of axes."""

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
        slope, dx, dw = turned(to_2d(dy, axes), _computed(dy.dtype)), None, None
        if needs[0]:
            shape = (len(slope), saved.weight.shape[1] * groups, *w.input_size)
            c = _conv(shape, to_2d(saved.weight, axes).shape, w, groups, dy.dtype, needs[0])
            dx = image_gradient(slope, saved.weight, c, versions[1])
            if dx is None:
                return NotImplemented
            dx = from_2d(in_format(dx, needs[0]), dy.ndim, axes)
        if needs[1]:
            images = to_2d(saved.input, axes)
            shape = (slope.shape[1], images.shape[1] // groups, *w.kernel)
            c = _conv(images.shape, shape, w, groups, dy.dtype, needs[1])
            dw = kernel_gradient(images, slope, c, _home(grad_buffers, axes, needs[1]))
            if dw is None:
                return NotImplemented
            dw = from_2d(in_format(dw, needs[1]), axes + 2, axes)
        return dx, dw, _bias_gradient(slope, needs[2])

    _register(op, forward, backward)


def _transposed_convolution(op: Any) -> None:
    """The kernels of a transposed convolution."""

    def forward(
        input: HostArray, weight: HostArray, bias: HostArray | None, stride: Any, padding: Any, output_padding: Any,
        groups: int, dilation: Any, *, dtype: DType, versions: Any,
    ) -> Any:  # fmt: skip
        w = conv.transposed_geometry(op.name, input, weight, stride, padding, output_padding, dilation)
        axes = len(w.input_size)
        maps, shape = to_2d(input, axes), (weight.shape[1] * groups, *w.as_2d.input_size)
        wide = dtype if bias is None else float32  # rounded once: after the bias, if there is one
        c = _conv((len(maps), *shape), to_2d(weight, axes).shape, w.as_2d, groups, input.dtype, wide)
        out = image_gradient(maps, weight, c, versions[1])
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
        images, dx, dw = turned(to_2d(dy, axes), _computed(dy.dtype)), None, None
        if needs[0]:
            c = _conv(images.shape, to_2d(saved.weight, axes).shape, w, groups, dy.dtype, needs[0])
            dx = convolve(images, saved.weight, None, c, versions[1])
            if dx is None:
                return NotImplemented
            dx = from_2d(in_format(dx, needs[0]), dy.ndim, axes)
        if needs[1]:
            maps = to_2d(saved.input, axes)
            shape = (maps.shape[1], images.shape[1] // groups, *w.kernel)
            c = _conv(images.shape, shape, w, groups, dy.dtype, needs[1])
            dw = kernel_gradient(images, maps, c, _home(grad_buffers, axes, needs[1]))
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

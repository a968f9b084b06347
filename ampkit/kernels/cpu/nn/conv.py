"""CPU kernels of the convolutions: oneDNN's, over channels-last images and volumes.

Sequences are images of one row. The forward of a transposed convolution is the input gradient of a convolution, and
its gradients are that convolution's output and weight gradient. Without fast 16-bit convolutions on this CPU, operands
are cast to float32 and the result is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit.backends.cpu import winograd
from ampkit.backends.cpu.channels_last import nhwc, to_channels_last
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import FLOATS
from ampkit.backends.cpu.onednn.convolution import Conv, convolve, input_gradient, weight_gradient
from ampkit.backends.cpu.onednn.library import has_fast_conv, library
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.cpu.reduction.reductions import column_sums
from ampkit.ops.nn import conv
from ampkit.ops.nn.conv_geometry import from_2d, to_2d

# Multiply-adds of an image, so that its bits do not depend on the batch it is in; below, the reference is as fast.
MIN_MACS = 1 << 12
_MIN_MACS_OF_BATCH = 1 << 15  # for a weight gradient alone, which sums over the batch


def _compute_dtype(dtype: DType) -> DType:
    return dtype if has_fast_conv(dtype) else float32


def _conv(
    images: tuple[int, ...], kernels: tuple[int, ...], w: ConvGeometry, groups: int, stored: DType, out: DType
) -> Conv:
    return Conv(images, kernels, w, groups, _compute_dtype(stored), out)


def _is_known(array: HostArray) -> bool:
    return bool(array.size) and array.dtype in FLOATS and library() is not None


def _fits(array: HostArray, kernels: HostArray, *more: Any) -> bool:
    if array.dtype != kernels.dtype or not _is_known(array):
        return False
    images = array.shape[0] if array.ndim == kernels.ndim else 1
    return array.size // images * (kernels.size // max(kernels.shape[1], 1)) >= MIN_MACS


def _back_fits(dy: HostArray, saved: Saved, needs: Any, **params: Any) -> bool:
    if needs[0]:
        return _fits(dy, saved.weight)
    if not needs[1] or not _is_known(dy):
        return False
    return dy.size * saved.input.shape[-1 - len(saved.geometry.input_size)] >= _MIN_MACS_OF_BATCH


def _apply(
    x: HostArray, weight: HostArray, bias: HostArray | None, geometry: ConvGeometry, groups: int, dtype: DType,
    version: Any, transposed: bool,
) -> HostArray:  # fmt: skip
    """The convolution of x plus bias in `dtype`, or its transpose, of any number of spatial axes."""
    axes, w = len(geometry.input_size), geometry.as_2d
    images, kernels = to_2d(x, axes), to_2d(weight, axes).shape
    if not transposed:
        c = _conv(images.shape, kernels, w, groups, x.dtype, dtype)
        return from_2d(in_format(convolve(images, weight, bias, c, version), dtype), x.ndim, axes)
    shape = len(images), weight.shape[1] * groups, *w.input_size
    c = _conv(shape, kernels, w, groups, x.dtype, dtype if bias is None else float32)  # rounded once: after the bias
    out = input_gradient(images, weight, c, version)
    if bias is not None:
        out += in_format(bias, float32).reshape(-1, *(1,) * (out.ndim - 2))
    return from_2d(in_format(out, dtype), x.ndim, axes)


def _weight_gradient(
    images: HostArray, outputs: HostArray, w: ConvGeometry, groups: int, need: DType, buffer: Any
) -> HostArray:
    """The weight gradient in the dtype `need`, from images and output gradients of rank 4 or 5."""
    shape = outputs.shape[1], images.shape[1] // groups, *w.kernel
    c = _conv(images.shape, shape, w, groups, outputs.dtype, need)
    return in_format(weight_gradient(images, outputs, c, buffer), need)


def _register(op: Any, geometry_of: Callable[..., ConvGeometry], transposed: bool) -> None:
    """Register forward and backward of `op`; the gradient of its input is the transpose of its forward."""

    def forward(
        input: HostArray, weight: HostArray, bias: HostArray | None, *options: Any, dtype: DType, versions: Any
    ) -> Any:
        named = dict(zip(op.signature.param_names, options, strict=True))
        groups = named.pop("groups")
        w = geometry_of(op.name, input, weight, **named)
        out = _apply(input, weight, bias, w, groups, dtype, versions[1], transposed)
        return out, Saved(input=input, weight=weight, geometry=w)

    def backward(
        dy: HostArray, saved: Saved, needs: Any, *, groups: int, versions: Any, grad_buffers: Any, **options: Any
    ) -> Any:
        w, axes, dx, dw = saved.geometry, len(saved.geometry.input_size), None, None
        kind = dy.dtype if winograd.applies(w, groups) else _compute_dtype(dy.dtype)  # that is cast once, here
        grad = to_channels_last(to_2d(dy, axes), kind)
        if needs[0]:
            back = from_2d(grad, dy.ndim, axes)
            dx = _apply(back, saved.weight, None, w, groups, needs[0], versions[1], not transposed)
        if needs[1]:
            input, buffer = to_2d(saved.input, axes), grad_buffers[1] if needs[1] == float32 and axes > 1 else None
            images, outputs = (grad, input) if transposed else (input, grad)
            dw = from_2d(_weight_gradient(images, outputs, w.as_2d, groups, needs[1], buffer), axes + 2, axes)
        return dx, dw, column_sums(nhwc(grad), needs[2])

    forward.__name__, backward.__name__ = f"{op.name}_cpu", f"{op.name}_backward_cpu"
    op.on("cpu", when=_fits, wants_cache=True)(forward)
    op.on_backward("cpu", when=_back_fits, wants_cache=True)(backward)


for _op in (conv.conv1d, conv.conv2d, conv.conv3d):
    _register(_op, conv.geometry_of, transposed=False)
for _op in (conv.conv_transpose1d, conv.conv_transpose2d, conv.conv_transpose3d):
    _register(_op, conv.transposed_geometry, transposed=True)

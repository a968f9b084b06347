"""CPU kernels of the convolutions: oneDNN's, over channels-last images and volumes.

Sequences are images of one row. The forward of a transposed convolution is the input gradient of a convolution, and
its gradients are that convolution's output and weight gradient. Without fast 16-bit convolutions on this CPU, operands
are cast to float32 and the result is rounded.
"""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu import winograd
from ampkit.backends.cpu.channels_last import to_channels_last
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import FLOATS
from ampkit.backends.cpu.onednn.convolution import Conv, convolve, input_gradient, weight_gradient
from ampkit.backends.cpu.onednn.library import has_fast_conv, library
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.cpu.reduction.reductions import column_sums
from ampkit.kernels.shared.conv import register_convolutions
from ampkit.ops.nn.conv_geometry import to_2d

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
    images: HostArray, weight: HostArray, bias: HostArray | None, w: ConvGeometry, groups: int, dtype: DType,
    version: Any, transposed: bool,
) -> HostArray:  # fmt: skip
    kernels = to_2d(weight, weight.ndim - 2).shape
    if not transposed:
        c = _conv(images.shape, kernels, w, groups, images.dtype, dtype)
        return in_format(convolve(images, weight, bias, c, version), dtype)
    shape = len(images), weight.shape[1] * groups, *w.input_size
    # Rounded once: after the bias.
    c = _conv(shape, kernels, w, groups, images.dtype, dtype if bias is None else float32)
    out = input_gradient(images, weight, c, version)
    if bias is not None:
        out += in_format(bias, float32).reshape(-1, *(1,) * (out.ndim - 2))
    return in_format(out, dtype)


def _weight_gradient(
    images: HostArray, outputs: HostArray, w: ConvGeometry, groups: int, need: DType, buffer: Any
) -> HostArray:
    """The weight gradient in the dtype `need`, from images and output gradients of rank 4 or 5."""
    shape = outputs.shape[1], images.shape[1] // groups, *w.kernel
    c = _conv(images.shape, shape, w, groups, outputs.dtype, need)
    return in_format(weight_gradient(images, outputs, c, buffer), need)


def _outputs(grad: HostArray, w: ConvGeometry, groups: int) -> HostArray:
    # Cast once, here, to what most convolutions compute with.
    return to_channels_last(grad, grad.dtype if winograd.applies(w, groups) else _compute_dtype(grad.dtype))


register_convolutions("cpu", _apply, _weight_gradient, column_sums, _outputs, _fits, _back_fits, wants_cache=True)

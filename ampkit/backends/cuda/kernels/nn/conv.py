"""Convolutions by cuDNN: forward, gradient of the input, gradient of the weight; images and volumes, channels-last.

Arrays keep their axes [N, C, H, W] and are stored as [N, H, W, C]. Inputs in another layout are copied once; results
are channels-last, so a chain of convolutions copies only its first input. 1-D inputs are images with one row. The
forward of a transposed convolution is the input gradient of a convolution.

Where cuDNN has no engine for a 16-bit dtype, operands are cast to float32, which is exact; so are products on tensor
cores, because TF32 represents every float16 and bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampkit import backends
from ampkit.backends.cuda.libs.cudnn import aligned
from ampkit.backends.cuda.libs.gemm import column_sums
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED
from ampkit.backends.precision import convolutions_use_tf32
from ampkit.base.dtypes import LOW, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn import conv
from ampkit.ops.nn.conv_geometry import ConvGeometry, from_2d, to_2d

Array = Any  # a CuPy array

LANE = 8  # channels are a multiple of this for cuDNN's tensor-core engines with float32 weight gradients


def channels_last(like: Array, shape: Sequence[int], dtype: DType) -> Array:
    """Allocate [N, C, H, W] or [N, C, D, H, W] on the device of `like`, stored channels-last."""
    n, c, *size = shape
    return backends.backend_of(like).empty((n, *size, c), dtype).transpose(0, len(size) + 1, *range(1, len(size) + 1))


def _nhwc(images: Array) -> Array:
    """[N, C, H, W] -> [N, H, W, C], a view."""
    return images.transpose(0, *range(2, images.ndim), 1)


def as_channels_last(images: Array, dtype: DType) -> Array:
    """Images [N, C, H, W] in `dtype`, channels-last and aligned; copied only if they are not."""
    if images.dtype == dtype and _nhwc(images).flags.c_contiguous and aligned(images):
        return images
    out = channels_last(images, images.shape, dtype)
    out[...] = images
    return out


def _pad_channels(images: Array) -> Array:
    """Images channels-last, with channels padded to a multiple of LANE; the padding is uninitialized."""
    n, c, *size = images.shape
    if not c % LANE:
        return as_channels_last(images, images.dtype)
    out = channels_last(images, (n, c + -c % LANE, *size), images.dtype)
    out[:, :c] = images
    return out


# forward, input gradient, weight gradient; None where cuDNN has no engine


def _library(array: Array) -> Any:
    return backends.backend_of(array).cudnn  # type: ignore[attr-defined]  # of the CUDA backend


def _forward(images: Array, weight: Array, bias: Array | None, geometry: ConvGeometry, dtype: DType) -> Array | None:
    """The convolution of `images` [N, C, H, W] with `weight` [O, C / groups, KH, KW], plus bias [O], in `dtype`."""
    shape = images.shape[0], weight.shape[0], *geometry.output_size
    return _run(_library(images).conv_forward, images, weight, bias, shape, geometry, dtype)


def _grad_input(
    outputs: Array, weight: Array, bias: Array | None, geometry: ConvGeometry, groups: int, dtype: DType
) -> Array | None:
    """The gradient of the input [N, C, H, W] from that of the output, `outputs` [N, O, OH, OW]; plus bias [C]."""
    shape = outputs.shape[0], weight.shape[1] * groups, *geometry.input_size
    return _run(_library(outputs).conv_data, outputs, weight, bias, shape, geometry, dtype)


def _run(
    run: Any, source: Array, weight: Array, bias: Array | None, shape: Sequence[int], geometry: ConvGeometry,
    dtype: DType,
) -> Array | None:  # fmt: skip
    """Call `run` with the dtype of `source`, then with float32, until cuDNN has an engine."""
    for cast in _dtypes_to_try(source.dtype):
        operands = as_channels_last(source, cast), as_channels_last(weight, cast), _bias_operand(bias, cast)
        out = channels_last(source, shape, dtype if cast == source.dtype else float32)
        if run(*operands, out, geometry, tf32=convolutions_use_tf32() or cast != source.dtype):
            return _cast_to(out, dtype)
    return None


def _grad_weight(images: Array, outputs: Array, geometry: ConvGeometry, groups: int, dtype: DType) -> Array | None:
    """The gradient of the weight [O, C / groups, KH, KW] from that of the output, `outputs` [N, O, OH, OW]."""
    shape, run = (outputs.shape[1], images.shape[1] // groups, *geometry.kernel), _library(outputs).conv_weight
    if dtype == float32 and outputs.dtype in LOW and groups == 1 and (shape[0] % LANE or shape[1] % LANE):
        # Each weight gradient reads one input and one output channel, so padding affects only what is sliced off.
        wide = _pad_channels(images), _pad_channels(outputs)
        out = channels_last(outputs, (wide[1].shape[1], wide[0].shape[1], *geometry.kernel), float32)
        if run(*wide, out, geometry):
            return out[: shape[0], : shape[1]]
    for cast in _dtypes_to_try(outputs.dtype):
        out = channels_last(outputs, shape, dtype if cast == outputs.dtype else float32)
        tf32 = convolutions_use_tf32() or cast != outputs.dtype
        if run(as_channels_last(images, cast), as_channels_last(outputs, cast), out, geometry, tf32=tf32):
            return _cast_to(out, dtype)
    return None


def _dtypes_to_try(stored: DType) -> tuple[DType, ...]:
    """The dtypes to try, in order."""
    return (stored,) if stored == float32 else (stored, float32)


def _bias_operand(bias: Array | None, dtype: DType) -> Array | None:
    if bias is None or (bias.dtype == dtype and bias.flags.c_contiguous and aligned(bias)):
        return bias
    return bias.astype(dtype, order="C")


def _cast_to(array: Array, dtype: DType) -> Array:
    return array if array.dtype == dtype else backends.backend_of(array).cast(array, dtype)


# kernels


def _fits(first: Array, second: Array, *more: Any) -> bool:
    return (
        first.dtype == second.dtype
        and first.dtype in STORED
        and 0 < first.size <= MAX_ELEMENTS
        and 0 < second.size <= MAX_ELEMENTS
        and not _library(first).trouble()
    )


def _supports_backward(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
    used = [name for name, need in zip(("weight", "input"), needs, strict=False) if need]
    return bool(used) and all(_fits(dy, getattr(saved, name)) for name in used)


def _grad_bias(grad: Array, need: DType | None) -> Array | None:
    return None if need is None else column_sums(_nhwc(grad).reshape(-1, grad.shape[1]), need)


def _register_conv(op: Any) -> None:
    """Register forward and backward of a convolution over any number of spatial axes."""

    def forward(
        input: Array, weight: Array, bias: Array | None, stride: Any, padding: Any, dilation: Any, groups: int,
        *, dtype: DType,
    ) -> Any:  # fmt: skip
        geometry = conv.geometry_of(op.name, input, weight, stride, padding, dilation)
        axes = len(geometry.input_size)
        out = _forward(to_2d(input, axes), to_2d(weight, axes), bias, geometry.as_2d, dtype)
        if out is None:
            return NotImplemented
        return from_2d(out, input.ndim, axes), Saved(input=input, weight=weight, geometry=geometry)

    def backward(dy: Array, saved: Saved, needs: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
        geometry, axes = saved.geometry.as_2d, len(saved.geometry.input_size)
        grad, dx, dw = as_channels_last(to_2d(dy, axes), dy.dtype), None, None
        if needs[0]:
            dx = _grad_input(grad, to_2d(saved.weight, axes), None, geometry, groups, needs[0])
            if dx is None:
                return NotImplemented
            dx = from_2d(dx, dy.ndim, axes)
        if needs[1]:
            dw = _grad_weight(to_2d(saved.input, axes), grad, geometry, groups, needs[1])
            if dw is None:
                return NotImplemented
            dw = from_2d(dw, axes + 2, axes)
        return dx, dw, _grad_bias(grad, needs[2])

    _register(op, forward, backward)


def _register_conv_transpose(op: Any) -> None:
    """Register forward and backward of a transposed convolution."""

    def forward(
        input: Array, weight: Array, bias: Array | None, stride: Any, padding: Any, output_padding: Any, groups: int,
        dilation: Any, *, dtype: DType,
    ) -> Any:  # fmt: skip
        geometry = conv.transposed_geometry(op.name, input, weight, stride, padding, output_padding, dilation)
        axes = len(geometry.input_size)
        out = _grad_input(to_2d(input, axes), to_2d(weight, axes), bias, geometry.as_2d, groups, dtype)
        if out is None:
            return NotImplemented
        return from_2d(out, input.ndim, axes), Saved(input=input, weight=weight, geometry=geometry)

    def backward(
        dy: Array, saved: Saved, needs: Any, stride: Any, padding: Any, output_padding: Any, groups: int,
        dilation: Any,
    ) -> Any:  # fmt: skip
        geometry, axes = saved.geometry.as_2d, len(saved.geometry.input_size)
        grad, dx, dw = as_channels_last(to_2d(dy, axes), dy.dtype), None, None
        if needs[0]:
            dx = _forward(grad, to_2d(saved.weight, axes), None, geometry, needs[0])
            if dx is None:
                return NotImplemented
            dx = from_2d(dx, dy.ndim, axes)
        if needs[1]:
            dw = _grad_weight(grad, to_2d(saved.input, axes), geometry, groups, needs[1])
            if dw is None:
                return NotImplemented
            dw = from_2d(dw, axes + 2, axes)
        return dx, dw, _grad_bias(grad, needs[2])

    _register(op, forward, backward)


def _register(op: Any, forward: Any, backward: Any) -> None:
    forward.__name__, backward.__name__ = f"{op.name}_cuda", f"{op.name}_backward_cuda"
    op.on("cuda", when=_fits)(forward)
    op.on_backward("cuda", when=_supports_backward)(backward)


for _op in (conv.conv1d, conv.conv2d, conv.conv3d):
    _register_conv(_op)
for _op in (conv.conv_transpose1d, conv.conv_transpose2d, conv.conv_transpose3d):
    _register_conv_transpose(_op)

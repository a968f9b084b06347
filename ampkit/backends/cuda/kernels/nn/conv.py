"""Kernels of the convolutions: cuDNN's three products, over images and volumes that lie channels-last.

Images keep their axes, [N, C, H, W], and lie in memory as [N, H, W, C]: what comes otherwise is turned once, and what a
kernel gives lies so, so that a chain of convolutions turns nothing but its first images. Sequences are images of one
row. A transposed convolution is the gradient of a convolution's images run forward.

What cuDNN has no engine for in a 16-bit format is widened, which rounds nothing, on tensor cores either: TF32 holds
every float16 and bfloat16.
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

LANE = 8  # channels that tensor cores take at a time; the engines with float32 kernel gradients want whole ones


def channels_last(like: Array, shape: Sequence[int], dtype: DType) -> Array:
    """An array [N, C, H, W] on the device of `like` that lies in memory as [N, H, W, C]; volumes likewise."""
    n, c, *size = shape
    return backends.backend_of(like).empty((n, *size, c), dtype).transpose(0, len(size) + 1, *range(1, len(size) + 1))


def _last(images: Array) -> Array:
    """[N, C, H, W] -> [N, H, W, C]."""
    return images.transpose(0, *range(2, images.ndim), 1)


def turned(images: Array, dtype: DType) -> Array:
    """Images [N, C, H, W] in `dtype`, channels-last: themselves where they are so."""
    if images.dtype == dtype and _last(images).flags.c_contiguous and aligned(images):
        return images
    out = channels_last(images, images.shape, dtype)
    out[...] = images
    return out


def _padded(images: Array) -> Array:
    """Images channels-last, with channels up to a whole LANE that hold nothing in particular."""
    n, c, *size = images.shape
    if not c % LANE:
        return turned(images, images.dtype)
    out = channels_last(images, (n, c + -c % LANE, *size), images.dtype)
    out[:, :c] = images
    return out


# the three products; None where cuDNN has no engine


def _library(array: Array) -> Any:
    return backends.backend_of(array).cudnn  # type: ignore[attr-defined]  # of the CUDA backend


def _maps(images: Array, kernels: Array, bias: Array | None, w: ConvGeometry, dtype: DType) -> Array | None:
    shape = images.shape[0], kernels.shape[0], *w.output_size
    return _product(_library(images).conv_forward, images, kernels, bias, shape, w, dtype)


def _images(
    maps: Array, kernels: Array, bias: Array | None, w: ConvGeometry, groups: int, dtype: DType
) -> Array | None:
    shape = maps.shape[0], kernels.shape[1] * groups, *w.input_size
    return _product(_library(maps).conv_data, maps, kernels, bias, shape, w, dtype)


def _product(
    run: Any, given: Array, kernels: Array, bias: Array | None, shape: Sequence[int], w: ConvGeometry, dtype: DType
) -> Array | None:
    for kind in _formats(given.dtype):
        operands = turned(given, kind), turned(kernels, kind), _vector(bias, kind)
        out = channels_last(given, shape, dtype if kind == given.dtype else float32)
        if run(*operands, out, w, tf32=convolutions_use_tf32() or kind != given.dtype):
            return _in_format(out, dtype)
    return None


def _kernels(images: Array, maps: Array, w: ConvGeometry, groups: int, dtype: DType) -> Array | None:
    shape, run = (maps.shape[1], images.shape[1] // groups, *w.kernel), _library(maps).conv_weight
    if dtype == float32 and maps.dtype in LOW and groups == 1 and (shape[0] % LANE or shape[1] % LANE):
        # A kernel's gradient meets one channel of each side: what pads them reaches only what is cut off again.
        wide = _padded(images), _padded(maps)
        out = channels_last(maps, (wide[1].shape[1], wide[0].shape[1], *w.kernel), float32)
        if run(*wide, out, w):
            return out[: shape[0], : shape[1]]
    for kind in _formats(maps.dtype):
        out = channels_last(maps, shape, dtype if kind == maps.dtype else float32)
        if run(turned(images, kind), turned(maps, kind), out, w, tf32=convolutions_use_tf32() or kind != maps.dtype):
            return _in_format(out, dtype)
    return None


def _formats(stored: DType) -> tuple[DType, ...]:
    return (stored,) if stored == float32 else (stored, float32)


def _vector(bias: Array | None, dtype: DType) -> Array | None:
    if bias is None or (bias.dtype == dtype and bias.flags.c_contiguous and aligned(bias)):
        return bias
    return bias.astype(dtype, order="C")


def _in_format(array: Array, dtype: DType) -> Array:
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


def _back_fits(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
    used = [name for name, need in zip(("weight", "input"), needs, strict=False) if need]
    return bool(used) and all(_fits(dy, getattr(saved, name)) for name in used)


def _bias_gradient(slope: Array, need: DType | None) -> Array | None:
    return None if need is None else column_sums(_last(slope).reshape(-1, slope.shape[1]), need)


def _convolution(op: Any) -> None:
    """The kernels of a convolution, for images of any number of axes."""

    def forward(
        input: Array, weight: Array, bias: Array | None, stride: Any, padding: Any, dilation: Any, groups: int,
        *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = conv.geometry_of(op.name, input, weight, stride, padding, dilation)
        axes = len(w.input_size)
        out = _maps(to_2d(input, axes), to_2d(weight, axes), bias, w.as_2d, dtype)
        if out is None:
            return NotImplemented
        return from_2d(out, input.ndim, axes), Saved(input=input, weight=weight, geometry=w)

    def backward(dy: Array, saved: Saved, needs: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
        w, axes = saved.geometry.as_2d, len(saved.geometry.input_size)
        slope, dx, dw = turned(to_2d(dy, axes), dy.dtype), None, None
        if needs[0]:
            dx = _images(slope, to_2d(saved.weight, axes), None, w, groups, needs[0])
            if dx is None:
                return NotImplemented
            dx = from_2d(dx, dy.ndim, axes)
        if needs[1]:
            dw = _kernels(to_2d(saved.input, axes), slope, w, groups, needs[1])
            if dw is None:
                return NotImplemented
            dw = from_2d(dw, axes + 2, axes)
        return dx, dw, _bias_gradient(slope, needs[2])

    _register(op, forward, backward)


def _transposed_convolution(op: Any) -> None:
    """The kernels of a transposed convolution."""

    def forward(
        input: Array, weight: Array, bias: Array | None, stride: Any, padding: Any, output_padding: Any, groups: int,
        dilation: Any, *, dtype: DType,
    ) -> Any:  # fmt: skip
        w = conv.transposed_geometry(op.name, input, weight, stride, padding, output_padding, dilation)
        axes = len(w.input_size)
        out = _images(to_2d(input, axes), to_2d(weight, axes), bias, w.as_2d, groups, dtype)
        if out is None:
            return NotImplemented
        return from_2d(out, input.ndim, axes), Saved(input=input, weight=weight, geometry=w)

    def backward(
        dy: Array, saved: Saved, needs: Any, stride: Any, padding: Any, output_padding: Any, groups: int,
        dilation: Any,
    ) -> Any:  # fmt: skip
        w, axes = saved.geometry.as_2d, len(saved.geometry.input_size)
        slope, dx, dw = turned(to_2d(dy, axes), dy.dtype), None, None
        if needs[0]:
            dx = _maps(slope, to_2d(saved.weight, axes), None, w, needs[0])
            if dx is None:
                return NotImplemented
            dx = from_2d(dx, dy.ndim, axes)
        if needs[1]:
            dw = _kernels(slope, to_2d(saved.input, axes), w, groups, needs[1])
            if dw is None:
                return NotImplemented
            dw = from_2d(dw, axes + 2, axes)
        return dx, dw, _bias_gradient(slope, needs[2])

    _register(op, forward, backward)


def _register(op: Any, forward: Any, backward: Any) -> None:
    forward.__name__, backward.__name__ = f"{op.name}_cuda", f"{op.name}_backward_cuda"
    op.on("cuda", when=_fits)(forward)
    op.on_backward("cuda", when=_back_fits)(backward)


for _op in (conv.conv1d, conv.conv2d, conv.conv3d):
    _convolution(_op)
for _op in (conv.conv_transpose1d, conv.conv_transpose2d, conv.conv_transpose3d):
    _transposed_convolution(_op)

"""Bodies of the convolutions: oneDNN's three products, over images that lie channels-last.

Sequences are images of one row. A transposed convolution is the gradient of a convolution's images run forward; its
own gradients are the other two products. Where the machine does not multiply a 16-bit format, images and kernels are
widened and the result is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.dtypes import DType, float32
from ...core.saved import Saved
from ...ops import conv
from ...ops.windows import Windows, batched, unbatched, windows
from .convolution import Conv, convolve, image_gradient, kernel_gradient
from .device import in_format
from .dnnl import library, multiplies
from .formats import FORMATS
from .gemm import column_sums
from .images import turned
from .onednn import HostArray

WORTH = 1 << 15  # multiplications; below, NumPy's own code takes as long


def _computed(dtype: DType) -> DType:
    return dtype if multiplies(dtype) else float32


def _conv(
    images: tuple[int, ...], kernels: tuple[int, ...], w: Windows, groups: int, stored: DType, out: DType
) -> Conv:
    # Computed in float32 where the machine does not multiply the format that the operands are stored in.
    kind = _computed(stored)
    return Conv(images, kernels, w, groups, kind, out if kind == stored else kind)


def _worth(array: HostArray, times: int) -> bool:
    # times: about how often each element of the array is multiplied
    return array.size * times >= WORTH and array.dtype in FORMATS and library() is not None


def _fits(array: HostArray, kernels: HostArray) -> bool:
    return array.dtype == kernels.dtype and _worth(array, kernels.size // max(kernels.shape[1], 1))


def _back_fits(dy: HostArray, saved: Saved, needs: Any, four: Callable[[HostArray], HostArray]) -> bool:
    if needs[0]:
        return _fits(dy, saved.weight)
    return bool(needs[1]) and _worth(dy, four(saved.input).shape[1])


def _gradients(
    dy: HostArray,
    saved: Saved,
    four: Callable[[HostArray], HostArray],
    needs: Any,
    groups: int,
    version: Any,
    home: Any,
) -> Any:
    # The gradients of images, kernels and bias; four: what gives an array its four axes.
    slope, w = turned(four(dy), _computed(dy.dtype)), saved.windows
    dx = dw = None
    if needs[0]:
        kernels = four(saved.weight).shape
        shape = (len(slope), kernels[1] * groups, *w.size)
        dx = image_gradient(slope, saved.weight, _conv(shape, kernels, w, groups, dy.dtype, needs[0]), version)
        if dx is None:
            return NotImplemented
        dx = in_format(dx, needs[0])
    if needs[1]:
        images = four(saved.input)
        shape = (slope.shape[1], images.shape[1] // groups, *w.kernel)
        c = _conv(images.shape, shape, w, groups, dy.dtype, needs[1])
        dw = kernel_gradient(images, slope, c, home if needs[1] == float32 else None)
        if dw is None:
            return NotImplemented
        dw = in_format(dw, needs[1])
    return dx, dw, _bias_gradient(slope, needs[2])


def _bias_gradient(slope: HostArray, need: DType | None) -> HostArray | None:
    return column_sums(slope.transpose(0, 2, 3, 1), need)


@conv.conv2d.on("cpu", when=lambda input, weight, *more: _fits(input, weight), keeps=True)
def conv2d_cpu(
    input: HostArray, weight: HostArray, bias: HostArray | None, stride: Any, padding: Any, dilation: Any, groups: int,
    *, dtype: DType, versions: Any,
) -> Any:  # fmt: skip
    w = windows("conv2d", weight.shape[2:], stride, padding, dilation, input.shape[-2:])
    images = batched(input)
    c = _conv(images.shape, weight.shape, w, groups, input.dtype, dtype)
    out = convolve(images, weight, bias, c, versions[1])
    if out is None:
        return NotImplemented
    return unbatched(in_format(out, dtype), input.ndim), Saved(input=input, weight=weight, windows=w)


@conv.conv2d.backward_primitive.on(  # type: ignore[union-attr,untyped-decorator]
    "cpu", when=lambda dy, saved, needs, **params: _back_fits(dy, saved, needs, batched), keeps=True
)
def conv2d_backward_cpu(
    dy: HostArray, saved: Saved, needs: Any, stride: Any, padding: Any, dilation: Any, groups: int, versions: Any,
    homes: Any,
) -> Any:  # fmt: skip
    found = _gradients(dy, saved, batched, needs, groups, versions[1], homes[1])
    if found is NotImplemented:
        return found
    dx, dw, db = found
    return None if dx is None else unbatched(dx, dy.ndim), dw, db


@conv.conv1d.on("cpu", when=lambda input, weight, *more: _fits(input, weight), keeps=True)
def conv1d_cpu(
    input: HostArray, weight: HostArray, bias: HostArray | None, stride: Any, padding: Any, dilation: Any, groups: int,
    *, dtype: DType, versions: Any,
) -> Any:  # fmt: skip
    w, images = conv.windows1d(input, weight, stride, padding, dilation), conv.tall(input)
    c = _conv(images.shape, conv.tall(weight).shape, w, groups, input.dtype, dtype)
    out = convolve(images, weight, bias, c, versions[1])
    if out is None:
        return NotImplemented
    return conv.flat(in_format(out, dtype), input.ndim), Saved(input=input, weight=weight, windows=w)


@conv.conv1d.backward_primitive.on(  # type: ignore[union-attr,untyped-decorator]
    "cpu", when=lambda dy, saved, needs, **params: _back_fits(dy, saved, needs, conv.tall), keeps=True
)
def conv1d_backward_cpu(
    dy: HostArray, saved: Saved, needs: Any, stride: Any, padding: Any, dilation: Any, groups: int, versions: Any,
    homes: Any,
) -> Any:  # fmt: skip
    found = _gradients(dy, saved, conv.tall, needs, groups, versions[1], None)
    if found is NotImplemented:
        return found
    dx, dw, db = found
    return None if dx is None else conv.flat(dx, dy.ndim), None if dw is None else conv.flat(dw, 3), db


@conv.conv_transpose2d.on("cpu", when=lambda input, weight, *more: _fits(input, weight), keeps=True)
def conv_transpose2d_cpu(
    input: HostArray, weight: HostArray, bias: HostArray | None, stride: Any, padding: Any, output_padding: Any,
    groups: int, dilation: Any, *, dtype: DType, versions: Any,
) -> Any:  # fmt: skip
    w = conv.transposed(input, weight, stride, padding, output_padding, dilation)
    maps, wide = batched(input), dtype if bias is None else float32  # rounded once: after the bias, if there is one
    shape = (len(maps), weight.shape[1] * groups, *w.size)
    out = image_gradient(maps, weight, _conv(shape, weight.shape, w, groups, input.dtype, wide), versions[1])
    if out is None:
        return NotImplemented
    if bias is not None:
        out += in_format(bias, float32).reshape(-1, 1, 1)
    return unbatched(in_format(out, dtype), input.ndim), Saved(input=input, weight=weight, windows=w)


@conv.conv_transpose2d.backward_primitive.on(  # type: ignore[union-attr,untyped-decorator]
    "cpu", when=lambda dy, saved, needs, **params: _back_fits(dy, saved, needs, batched), keeps=True
)
def conv_transpose2d_backward_cpu(
    dy: HostArray, saved: Saved, needs: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any,
    versions: Any, homes: Any,
) -> Any:  # fmt: skip
    images, w = turned(batched(dy), _computed(dy.dtype)), saved.windows
    dx = dw = None
    if needs[0]:
        c = _conv(images.shape, saved.weight.shape, w, groups, dy.dtype, needs[0])
        dx = convolve(images, saved.weight, None, c, versions[1])
        if dx is None:
            return NotImplemented
        dx = unbatched(in_format(dx, needs[0]), dy.ndim)
    if needs[1]:
        maps = batched(saved.input)
        shape = (maps.shape[1], images.shape[1] // groups, *w.kernel)
        c = _conv(images.shape, shape, w, groups, dy.dtype, needs[1])
        dw = kernel_gradient(images, maps, c, homes[1] if needs[1] == float32 else None)
        if dw is None:
            return NotImplemented
        dw = in_format(dw, needs[1])
    return dx, dw, _bias_gradient(images, needs[2])

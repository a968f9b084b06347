"""Convolution over channels-last images: output, input gradient and weight gradient, by oneDNN where nothing is faster.

Where oneDNN has no fast implementation in a 16-bit dtype, operands are cast to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import DType, float32, uint8
from ampkit.base.errors import UnsupportedError
from ampkit.base.version_counter import derived_value

from .. import im2col, winograd
from ..channels_last import channels_last_layout, empty_channels_last, onednn_geometry, to_channels_last
from ..copies import copy
from ..device import in_format
from .primitive import (
    BIAS,
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DIRECT_CONVOLUTION,
    DST,
    SRC,
    TRAINING,
    WEIGHTS,
    Call,
    HostArray,
    Layout,
    attributes,
    cached,
    empty,
    packing_reorder,
    primitive_desc,
)

# Implementations of input gradients with strides that order their sums by how the batch divides among the threads.
_BY_BATCH = "brgconv_strided"


class Conv(NamedTuple):
    """Signature of a convolution: images [N, C, H, W], kernels [O, C / groups, KH, KW], geometry and dtypes.

    dtype: what is computed in; out: of the result.
    """

    images: tuple[int, ...]
    kernels: tuple[int, ...]
    geometry: ConvGeometry
    groups: int
    dtype: DType
    out: DType

    @property
    def output(self) -> tuple[int, ...]:
        return self.images[0], self.kernels[0], *self.geometry.output_size

    @property
    def written(self) -> DType:
        """The dtype of oneDNN's result, which has more bits than `out` where that is narrower than `dtype`."""
        return float32 if self.dtype == float32 else self.out

    @property
    def grouped(self) -> tuple[int, ...]:
        """The shape of the kernels in oneDNN's convention: with a leading axis for groups, if there are several."""
        o, *rest = self.kernels
        return self.kernels if self.groups == 1 else (self.groups, o // self.groups, *rest)


def _forward_parts(c: Conv, with_bias: bool) -> tuple[Any, ...]:
    of, to = channels_last_layout(c.images, c.dtype), channels_last_layout(c.output, c.written)
    kernels = Layout(c.grouped, c.dtype, None)
    bias = Layout.dense(c.kernels[:1], c.dtype) if with_bias else None
    return of, to, kernels, bias


def _output_call(c: Conv, with_bias: bool) -> Call:
    of, to, kernels, bias = _forward_parts(c, with_bias)
    handles = [of.handle, kernels.handle, bias and bias.handle, to.handle]
    uses = [(SRC, of), (WEIGHTS, None), (DST, to), *([(BIAS, bias)] if bias else [])]
    return Call(
        "convolution_forward",
        [TRAINING, DIRECT_CONVOLUTION, *handles, *onednn_geometry(c.geometry), attributes()],
        uses,
    )


def _forward_hint(c: Conv) -> Any:
    of, to, kernels, _ = _forward_parts(c._replace(out=c.dtype), False)
    handles = [of.handle, kernels.handle, None, to.handle]
    return primitive_desc(
        "convolution_forward", TRAINING, DIRECT_CONVOLUTION, *handles, *onednn_geometry(c.geometry), attributes()
    )


def _input_gradient_call(c: Conv) -> Call:
    to, of = channels_last_layout(c.images, c.written), channels_last_layout(c.output, c.dtype)
    kernels = Layout(c.grouped, c.dtype, None)
    handles = [to.handle, kernels.handle, of.handle]
    given = [DIRECT_CONVOLUTION, *handles, *onednn_geometry(c.geometry), _forward_hint(c), attributes()]
    uses = [(DIFF_DST, of), (WEIGHTS, None), (DIFF_SRC, to)]
    return Call("convolution_backward_data", given, uses, avoid=_BY_BATCH)


def _weight_gradient_call(c: Conv) -> Call:
    of, grad = channels_last_layout(c.images, c.dtype), channels_last_layout(c.output, c.dtype)
    kernels = Layout(c.grouped, float32, None)
    handles = [of.handle, kernels.handle, None, grad.handle]
    given = [DIRECT_CONVOLUTION, *handles, *onednn_geometry(c.geometry), _forward_hint(c), attributes()]
    return Call("convolution_backward_weights", given, [(SRC, of), (DIFF_DST, grad), (DIFF_WEIGHTS, None)])


class _PackedCall(NamedTuple):
    """A primitive, and the reorder of kernels between C order and the layout that it chose: `layout`, of `nbytes`."""

    run: Call
    reorder: Call
    nbytes: int
    layout: int

    def pack(self, kernels: HostArray, dtype: DType, version: Any) -> HostArray:
        """`kernels` in `dtype` and in the primitive's layout, cached under their version."""

        def make() -> HostArray:
            packed = empty((self.nbytes,), uint8)
            self.reorder(np.ascontiguousarray(in_format(kernels, dtype)), packed)
            return packed

        found: HostArray | None = derived_value(version, kernels, ("kernels", self.layout), make)
        return make() if found is None else found


def _packed_call(create: Callable[..., Call], c: Conv, *options: bool) -> _PackedCall | None:
    """The primitive `create(c, *options)` and the reorder of its kernels: into its layout, or out of it if it writes
    their gradient. None where oneDNN has no fast implementation.
    """

    def build() -> _PackedCall:
        call, is_gradient = create(c, *options), create is _weight_gradient_call
        chosen = call.layouts[2 if is_gradient else 1]
        dense = Layout.dense(c.grouped, float32 if is_gradient else c.dtype)
        reorder = packing_reorder(chosen, dense) if is_gradient else packing_reorder(dense, chosen)
        return _PackedCall(call, reorder, chosen.nbytes, chosen.interned_id)

    return cached(("conv", create, c, options), build)


def _in_float32(c: Conv) -> Conv:
    if c.dtype == float32:
        raise UnsupportedError
    return c._replace(dtype=float32)


def convolve(images: HostArray, kernels: HostArray, bias: HostArray | None, c: Conv, version: Any) -> HostArray:
    """The output [N, O, H, W] in c.out or float32. Raises UnsupportedError where oneDNN computes neither fast."""
    bias = bias if bias is None else np.ascontiguousarray(bias)  # as the call's layout requires
    if winograd.is_profitable_for_output(c):
        found = winograd.conv_output(images, kernels, bias, c.geometry, c.out, version)
        if found is not None:
            return found
    if im2col.is_profitable_for_output(c):
        row = None if bias is None else in_format(bias, c.dtype)
        found = im2col.conv_output(to_channels_last(images, c.dtype), in_format(kernels, c.dtype), row, c, version)
        if found is not None:
            return found
    wrong = c.dtype != float32 and (is_misread(c.kernels, c.geometry, 32) or _is_volume_with_gaps(c.geometry))
    ready = None if wrong else _packed_call(_output_call, c, bias is not None)
    if ready is None:
        return convolve(images, kernels, bias, _in_float32(c), version)
    packed, out = ready.pack(kernels, c.dtype, version), empty_channels_last(c.output, c.written)
    ready.run(to_channels_last(images, c.dtype), packed, out, *([] if bias is None else [in_format(bias, c.dtype)]))
    return out


def input_gradient(dy: HostArray, kernels: HostArray, c: Conv, version: Any) -> HostArray:
    """The input gradient in c.out or float32. Raises UnsupportedError as `convolve`."""
    if winograd.is_profitable_for_input_grad(c):
        found = winograd.input_gradient(dy, kernels, c.geometry, c.out, version)
        if found is not None:
            return found
    if im2col.is_profitable_for_input_grad(c):
        found = im2col.input_gradient(to_channels_last(dy, c.dtype), in_format(kernels, c.dtype), c, version)
        if found is not None:
            return found
    # A strided depthwise convolution is ten times slower with AMX, which has no matrix to multiply there.
    slow = c.dtype != float32 and _is_depthwise(c) and max(c.geometry.stride) > 1
    wrong = c.dtype != float32 and _is_volume_with_gaps(c.geometry)
    ready = None if slow or wrong else _packed_call(_input_gradient_call, c)
    if ready is None:
        return input_gradient(dy, kernels, _in_float32(c), version)
    packed, out = ready.pack(kernels, c.dtype, version), empty_channels_last(c.images, c.written)
    if c.dtype != float32 and not c.geometry.reads_all:
        out.fill(0)  # oneDNN's 16-bit kernels for AMX leave some of the pixels that are in no window as they were
    ready.run(to_channels_last(dy, c.dtype), packed, out)
    return out


def weight_gradient(images: HostArray, dy: HostArray, c: Conv, buffer: HostArray | None = None) -> HostArray:
    """The weight gradient, float32, written to `buffer` if given. Raises UnsupportedError as `convolve`."""
    if winograd.is_profitable_for_weight_grad(c):
        found = winograd.weight_gradient(images, dy, c.geometry, buffer)
        if found is not None:
            return found
    images, dy = to_channels_last(images, c.dtype), to_channels_last(dy, c.dtype)
    if im2col.is_profitable_for_weight_grad(c):
        found = im2col.weight_gradient(images, dy, c.geometry, buffer)
        if found is not None:
            return found
    if _needs_strips(c):
        return _weight_gradient_in_strips(images, dy, c, buffer)
    wrong = c.dtype != float32 and (_is_longer_than_images(c.geometry) or _steps_over_padding(c.geometry))
    ready = None if wrong else _packed_call(_weight_gradient_call, c)
    if ready is None:
        return weight_gradient(images, dy, _in_float32(c), buffer)
    packed, out = empty((ready.nbytes,), uint8), empty(c.kernels, float32) if buffer is None else buffer
    ready.run(images, dy, packed)
    ready.reorder(packed, out)
    return out


_MAX_COLUMNS = 3  # columns of depthwise kernels with a fast implementation; wider ones take ten times as long


def _is_longer_than_images(w: ConvGeometry) -> bool:
    # Then oneDNN's 16-bit weight gradients are wrong, in several strides and dimensions, or not written at all.
    return any(d * (k - 1) >= n for d, k, n in zip(w.dilation, w.kernel, w.input_size, strict=True))


# What oneDNN 3.2 computes wrongly with AMX, found by `python -m tests.fuzz.convolutions`.


def is_misread(kernels: Sequence[int], geometry: ConvGeometry, block: int) -> bool:
    """Whether outputs are wrong: columns have a stride, and a row of a kernel has a multiple of `block`, but no pixel.

    kernels: [O, C / groups, ..., KW]; block: of 64 bytes, in elements.
    """
    channels, columns = kernels[1], kernels[-1]
    return geometry.stride[-1] > 1 and channels % block != 0 and channels * columns % block == 0


def _is_volume_with_gaps(w: ConvGeometry) -> bool:
    # Outputs and input gradients then read and write beyond the volumes.
    return len(w.stride) == 3 and not w.reads_all


def _steps_over_padding(w: ConvGeometry) -> bool:
    # Weight gradients then read columns beyond the images, where these have few.
    return max(w.stride) > 2 and any(any(sides) for sides in w.padding)


def _is_depthwise(c: Conv) -> bool:
    return 1 < c.groups == c.images[1] == c.kernels[0]


def _is_tall(w: ConvGeometry) -> bool:
    return w.kernel[0] > w.input_size[0] and w.padding[0] != (0, 0)


def _needs_strips(c: Conv) -> bool:
    # A depthwise kernel wider than oneDNN's fast implementation, or taller than the images.
    w = c.geometry
    plain = _is_depthwise(c) and len(w.input_size) == 2 and w.dilation == (1, 1)
    return plain and (w.kernel[1] > _MAX_COLUMNS or _is_tall(w))


def _weight_gradient_in_strips(images: HostArray, dy: HostArray, c: Conv, buffer: HostArray | None) -> HostArray:
    # `weight_gradient` of depthwise kernels, a few columns at a time, over the pixels that these columns read.
    w, out = c.geometry, empty(c.kernels, float32) if buffer is None else buffer
    (height, width), above = w.input_size, w.padding[0] if _is_tall(w) else (0, 0)
    top, left, rest = above[0], w.padding[1][0], w.padding[0] if above == (0, 0) else (0, 0)
    padded = empty_channels_last((*c.images[:2], height + sum(above), w.padded_size[1]), images.dtype)
    padded[..., :left], padded[..., left + width :] = 0, 0
    padded[:, :, :top], padded[:, :, top + height :] = 0, 0
    copy(padded[:, :, top : top + height, left : left + width], images)
    ends = np.linspace(0, w.kernel[1], -(-w.kernel[1] // _MAX_COLUMNS) + 1).astype(int).tolist()
    for first, end in pairwise(ends):
        reach = (w.output_size[1] - 1) * w.stride[1] + end - first
        part = empty_channels_last((*padded.shape[:-1], reach), images.dtype)
        copy(part, padded[..., first : first + reach])
        kernel, size = (w.kernel[0], end - first), (padded.shape[2], reach)
        strip = w._replace(kernel=kernel, padding=(rest, (0, 0)), input_size=size)
        shapes = {"images": part.shape, "kernels": (*c.kernels[:-1], end - first)}
        out[..., first:end] = weight_gradient(part, dy, c._replace(geometry=strip, **shapes))
    return out

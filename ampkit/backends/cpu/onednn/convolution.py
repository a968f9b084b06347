"""convolution: the three products of a convolution by oneDNN, over images that lie channels-last.

What oneDNN has no fast code for in a 16-bit format is widened.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import DType, float32, uint8
from ampkit.base.version_counter import derived_value

from .. import im2col
from ..channels_last import channels_last, geometry, layout, turned
from ..device import in_format
from .primitive import (
    ALGORITHM,
    BIAS,
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DST,
    SRC,
    TRAINING,
    WEIGHTS,
    Call,
    HostArray,
    Layout,
    attributes,
    described,
    empty,
    packing,
    prepared,
)
from .reorder import fill

if TYPE_CHECKING:
    from ampkit.ops.nn.conv_geometry import ConvGeometry


class Conv(NamedTuple):
    """What a convolution's primitives depend on: kernels [O, C / groups, KH, KW] over images [N, C, H, W]."""

    images: tuple[int, ...]
    kernels: tuple[int, ...]
    geometry: ConvGeometry
    groups: int
    dtype: DType
    out: DType

    @property
    def maps(self) -> tuple[int, ...]:
        return self.images[0], self.kernels[0], *self.geometry.output_size

    @property
    def grouped(self) -> tuple[int, ...]:
        """The shape of the kernels as oneDNN has it: with an axis for groups, if there are some."""
        o, *rest = self.kernels
        return self.kernels if self.groups == 1 else (self.groups, o // self.groups, *rest)


def _forward_parts(c: Conv, with_bias: bool) -> tuple[Any, ...]:
    of, to = layout(c.images, c.dtype), layout(c.maps, c.out)
    kernels = Layout(c.grouped, c.dtype, None)
    bias = Layout.dense(c.kernels[:1], c.dtype) if with_bias else None
    return of, to, kernels, bias


def _forward(c: Conv, with_bias: bool) -> Call:
    of, to, kernels, bias = _forward_parts(c, with_bias)
    handles = [of.handle, kernels.handle, bias and bias.handle, to.handle]
    uses = [(SRC, of), (WEIGHTS, None), (DST, to), *([(BIAS, bias)] if bias else [])]
    return Call(
        "convolution_forward", [TRAINING, ALGORITHM["direct"], *handles, *geometry(c.geometry), attributes()], uses
    )


def _hint(c: Conv) -> Any:
    of, to, kernels, _ = _forward_parts(c._replace(out=c.dtype), False)
    handles = [of.handle, kernels.handle, None, to.handle]
    return described(
        "convolution_forward", TRAINING, ALGORITHM["direct"], *handles, *geometry(c.geometry), attributes()
    )


def _backward_images(c: Conv) -> Call:
    to, of, kernels = layout(c.images, c.out), layout(c.maps, c.dtype), Layout(c.grouped, c.dtype, None)
    handles = [to.handle, kernels.handle, of.handle]
    given = [ALGORITHM["direct"], *handles, *geometry(c.geometry), _hint(c), attributes()]
    return Call("convolution_backward_data", given, [(DIFF_DST, of), (WEIGHTS, None), (DIFF_SRC, to)])


def _backward_kernels(c: Conv) -> Call:
    of, slope, kernels = layout(c.images, c.dtype), layout(c.maps, c.dtype), Layout(c.grouped, float32, None)
    handles = [of.handle, kernels.handle, None, slope.handle]
    given = [ALGORITHM["direct"], *handles, *geometry(c.geometry), _hint(c), attributes()]
    return Call("convolution_backward_weights", given, [(SRC, of), (DIFF_DST, slope), (DIFF_WEIGHTS, None)])


# running them


class _Ready(NamedTuple):
    """A primitive, and the move of kernels between NumPy's order and the one that it wants or gives: `number`."""

    run: Call
    move: Call
    room: int
    number: int

    def moved(self, kernels: HostArray, dtype: DType, version: Any) -> HostArray:
        """`kernels` in `dtype` as the primitive wants them: those of last time, if they did not change."""

        def make() -> HostArray:
            home = empty((self.room,), uint8)
            self.move(np.ascontiguousarray(in_format(kernels, dtype)), home)
            return home

        found: HostArray | None = derived_value(version, kernels, ("kernels", self.number), make)
        return make() if found is None else found


def _ready(kind: str, c: Conv, with_bias: bool = False) -> _Ready | None:
    def build() -> _Ready:
        call = {"forward": lambda: _forward(c, with_bias), "images": lambda: _backward_images(c)}.get(
            kind, lambda: _backward_kernels(c)
        )()
        place = 2 if kind == "kernels" else 1
        theirs, dtype = call.layouts[place], float32 if kind == "kernels" else c.dtype
        ours = Layout.dense(c.grouped, dtype)
        of, to = (theirs, ours) if kind == "kernels" else (ours, theirs)
        return _Ready(call, packing(of, to), theirs.nbytes, theirs.number)

    found: _Ready | None = prepared(("conv", kind, c, with_bias), build)
    return found


def _widened(c: Conv) -> Conv:
    return c._replace(dtype=float32, out=float32)


def convolve(images: HostArray, kernels: HostArray, bias: HostArray | None, c: Conv, version: Any) -> HostArray | None:
    """Maps [N, O, rows, columns] in c.out or float32; None where oneDNN has no fast code for either."""
    bias = bias if bias is None else np.ascontiguousarray(bias)  # as the layout of the call says
    if im2col.pays_for_maps(c):
        row = None if bias is None else in_format(bias, c.dtype)
        found = im2col.maps(turned(images, c.dtype), in_format(kernels, c.dtype), row, c, version)
        if found is not None:
            return found
    ready = _ready("forward", c, bias is not None)
    if ready is None:
        return None if c.dtype == float32 else convolve(images, kernels, bias, _widened(c), version)
    home, out = ready.moved(kernels, c.dtype, version), channels_last(c.maps, c.out)
    ready.run(turned(images, c.dtype), home, out, *([] if bias is None else [in_format(bias, c.dtype)]))
    return out


def image_gradient(dy: HostArray, kernels: HostArray, c: Conv, version: Any) -> HostArray | None:
    """The gradient of the images, in c.out or float32; None where oneDNN has no fast code for either."""
    if im2col.pays_for_images(c):
        found = im2col.image_gradient(turned(dy, c.dtype), in_format(kernels, c.dtype), c, version)
        if found is not None:
            return found
    # Matrix units have nothing to multiply in a depthwise convolution, and take ten times as long where it strides.
    slow = c.dtype != float32 and _is_depthwise(c) and max(c.geometry.stride) > 1
    ready = None if slow else _ready("images", c)
    if ready is None:
        return None if c.dtype == float32 else image_gradient(dy, kernels, _widened(c), version)
    home, out = ready.moved(kernels, c.dtype, version), channels_last(c.images, c.out)
    ready.run(turned(dy, c.dtype), home, out)
    return out


def kernel_gradient(images: HostArray, dy: HostArray, c: Conv, home: HostArray | None = None) -> HostArray | None:
    """The gradient of the kernels, float32, left in `home` if there is one; None where oneDNN has no fast code."""
    images, dy = turned(images, c.dtype), turned(dy, c.dtype)
    if im2col.pays(c):
        found = im2col.kernel_product(images, dy, c.geometry, home)
        if found is not None:
            return found
    if _is_wide(c):
        return _in_strips(images, dy, c, home)
    ready = _ready("kernels", c)
    if ready is None:
        return None if c.dtype == float32 else kernel_gradient(images, dy, _widened(c), home)
    found, out = empty((ready.room,), uint8), empty(c.kernels, float32) if home is None else home
    ready.run(images, dy, found)
    ready.move(found, out)
    return out


_WIDE = 3  # columns of depthwise kernels for which oneDNN has code of its own; others take it ten times as long


def _is_depthwise(c: Conv) -> bool:
    return 1 < c.groups == c.images[1] == c.kernels[0]


def _is_tall(w: ConvGeometry) -> bool:
    return w.kernel[0] > w.input_size[0] and w.padding[0] != (0, 0)


def _is_wide(c: Conv) -> bool:
    # Wider than what oneDNN has code of its own for, or taller than the images.
    w = c.geometry
    plain = _is_depthwise(c) and len(w.input_size) == 2 and w.dilation == (1, 1)
    return plain and (w.kernel[1] > _WIDE or _is_tall(w))


def _in_strips(images: HostArray, dy: HostArray, c: Conv, home: HostArray | None) -> HostArray | None:
    # `kernel_gradient` of depthwise kernels, a few of their columns at a time, over the pixels that these meet.
    w, out = c.geometry, empty(c.kernels, float32) if home is None else home
    (height, width), above = w.input_size, w.padding[0] if _is_tall(w) else (0, 0)
    top, left, rest = above[0], w.padding[1][0], w.padding[0] if above == (0, 0) else (0, 0)
    padded = channels_last((*c.images[:2], height + sum(above), w.padded_size[1]), images.dtype)
    padded[..., :left], padded[..., left + width :] = 0, 0
    padded[:, :, :top], padded[:, :, top + height :] = 0, 0
    fill(padded[:, :, top : top + height, left : left + width], images)
    ends = np.linspace(0, w.kernel[1], -(-w.kernel[1] // _WIDE) + 1).astype(int).tolist()
    for first, end in pairwise(ends):
        reach = (w.output_size[1] - 1) * w.stride[1] + end - first
        part = channels_last((*padded.shape[:-1], reach), images.dtype)
        fill(part, padded[..., first : first + reach])
        kernel, size = (w.kernel[0], end - first), (padded.shape[2], reach)
        strip = w._replace(kernel=kernel, padding=(rest, (0, 0)), input_size=size)
        shapes = {"images": part.shape, "kernels": (*c.kernels[:-1], end - first)}
        found = kernel_gradient(part, dy, c._replace(geometry=strip, **shapes))
        if found is None:
            return None
        out[..., first:end] = found
    return out

"""Convolution: images gathered into columns, a block at a time, and one matrix product per block.

The three products of a convolution (its output, the gradient of its input, the gradient of its weight) are linear in
each of their operands and are written once, for sequences, images and volumes; a transposed convolution is the second
of them run forward.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import TracedArray, apply
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast

from ..reduction.dot_products import times
from .conv_geometry import (
    ConvGeometry,
    add_columns,
    batch_first,
    batch_last,
    batched,
    columns_by_block,
    conv_geometry,
    fold,
    fold_,
    pair,
    unbatched,
    unfold,
    unfold_,
)

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "fold",
    "unfold",
]


# the three products: images [N, C, H, W], weight [O, C / groups, KH, KW], maps [N, O, rows, columns]


def convolve(images: Array, weight: Array, w: ConvGeometry, groups: int) -> Array:
    """The maps: each window times each kernel."""
    kernels, batch = _kernels(weight, groups), images.shape[0]
    if isinstance(images, TracedArray) or isinstance(weight, TracedArray):
        return (kernels @ _columns(images, w, groups)).reshape(batch, weight.shape[0], *w.output_size)
    maps = np.empty_like(images, shape=(*kernels.shape[:2], prod(w.output_size) * batch), order="C")
    for part, found in columns_by_block(images, w):
        times(kernels, _grouped(found, groups), maps[:, :, part])
    return batch_first(maps.reshape(weight.shape[0], *w.output_size, batch))


def input_gradient(maps: Array, weight: Array, w: ConvGeometry, groups: int) -> Array:
    """The images: each window the kernels weighted by the maps, summed where windows overlap."""
    kernels, channels, batch = _kernels(weight, groups).swapaxes(1, 2), weight.shape[1] * groups, maps.shape[0]
    if isinstance(maps, TracedArray) or isinstance(weight, TracedArray):
        columns = kernels @ _by_group(maps, groups)
        return apply(fold_, columns.reshape(batch, columns.shape[1] * columns.shape[2], columns.shape[3]), w)
    rows = _rows(maps, groups)
    by = np.multiply if rows.shape[1] == 1 else times  # with one map per group the product is an outer one
    if w.pointwise:
        return batch_first(by(kernels, rows).reshape(channels, *w.input_size, batch))
    home = np.zeros_like(maps, shape=(channels, *w.padded_size, batch), order="C")
    line = prod(w.output_size[1:]) * batch
    for first, end in w.row_blocks(channels, batch):
        columns = by(kernels, rows[:, :, first * line : end * line])
        add_columns(home, columns.reshape(channels, *w.kernel, end - first, *w.output_size[1:], batch), w, first, end)
    return batch_first(w.crop(home))


def weight_gradient(images: Array, maps: Array, w: ConvGeometry, groups: int) -> Array:
    """The kernels: each window times its maps, summed over windows and batch."""
    shape = (maps.shape[1], images.shape[1] // groups, *w.kernel)
    if isinstance(images, TracedArray) or isinstance(maps, TracedArray):
        return blocked_sum(_by_group(maps, groups) @ _columns(images, w, groups).swapaxes(-1, -2), 0).reshape(shape)
    rows, total = _rows(maps, groups), None
    for part, columns in columns_by_block(images, w):
        product = times(rows[:, :, part], _grouped(columns, groups).swapaxes(1, 2))
        total = product if total is None else total + product
    return total.reshape(shape)


def _kernels(weight: Array, groups: int) -> Array:
    return weight.reshape(groups, weight.shape[0] // groups, prod(weight.shape[1:]))


def _grouped(columns: Array, groups: int) -> Array:
    return columns.reshape(groups, columns.shape[0] // groups, columns.shape[1])


def _rows(maps: Array, groups: int) -> Array:
    batch, channels, *size = maps.shape
    return batch_last(maps).reshape(groups, channels // groups, prod(size) * batch)


def _by_group(maps: Array, groups: int) -> Array:
    batch, channels, *size = maps.shape
    return maps.reshape(batch, groups, channels // groups, prod(size))


def _columns(images: Array, w: ConvGeometry, groups: int) -> Array:
    found = apply(unfold_, images, w)
    return found.reshape(found.shape[0], groups, found.shape[1] // groups, found.shape[2])


# what the ops share


def _forward(
    where: str, input: Array, weight: Array, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    w = covered(where, input, weight, stride, padding, dilation)
    maps = _with_bias(convolve(batched(input, len(w.input_size)), weight, w, groups), bias)
    return unbatched(maps, input.ndim), Saved(input=input, weight=weight, geometry=w)


def _transposed_forward(where: str, input: Array, weight: Array, bias: Any, groups: int, *how: Any) -> Any:
    w = transposed(where, input, weight, *how)
    images = _with_bias(input_gradient(batched(input, len(w.input_size)), weight, w, groups), bias)
    return unbatched(images, input.ndim), Saved(input=input, weight=weight, geometry=w)


def _with_bias(maps: Array, bias: Array | None) -> Array:
    if bias is not None:
        maps += bias.reshape(-1, *(1,) * (maps.ndim - 2))
    return maps


def _bias_gradient(dy: Array) -> Array:
    return blocked_sum(dy, (0, *range(2, dy.ndim)))


def conv_backward(dy, saved, needs, stride, padding, dilation, groups):
    w = saved.geometry
    maps = batched(dy, len(w.input_size))
    dx = unbatched(input_gradient(maps, saved.weight, w, groups), dy.ndim) if needs[0] else None
    dw = weight_gradient(batched(saved.input, len(w.input_size)), maps, w, groups) if needs[1] else None
    return dx, dw, _bias_gradient(maps) if needs[2] else None


def conv_transpose_backward(dy, saved, needs, stride, padding, output_padding, groups, dilation):
    w = saved.geometry
    images = batched(dy, len(w.input_size))
    dx = unbatched(convolve(images, saved.weight, w, groups), dy.ndim) if needs[0] else None
    dw = weight_gradient(images, batched(saved.input, len(w.input_size)), w, groups) if needs[1] else None
    return dx, dw, _bias_gradient(images) if needs[2] else None


def covered(where: str, input: Array, weight: Array, stride: Any, padding: Any, dilation: Any) -> ConvGeometry:
    """The windows of a convolution's arguments. Raises as `windows`."""
    return conv_geometry(where, weight.shape[2:], stride, padding, dilation, input.shape[2 - weight.ndim :])


def transposed(
    where: str, input: Array, weight: Array, stride: Any, padding: Any, output_padding: Any, dilation: Any
) -> ConvGeometry:
    """The windows over what a transposed convolution makes, whose maps its input is. Raises as `windows`."""
    axes = weight.ndim - 2
    steps, spread = pair(where, "stride", stride, 1, axes), pair(where, "dilation", dilation, 1, axes)
    pads, more = pair(where, "padding", padding, 0, axes), pair(where, "output_padding", output_padding, 0, axes)
    if any(m >= s for m, s in zip(more, steps, strict=True)):
        raise ArgumentError(where, f"output_padding smaller than stride {steps}", f"{more}")
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + 1 + m
        for n, s, p, d, k, m in zip(input.shape[-axes:], steps, pads, spread, weight.shape[2:], more, strict=True)
    )
    if min(size) < 1:
        raise ShapeError(where, f"padding that leaves a pixel of {list(input.shape[-axes:])}", f"{pads}")
    return conv_geometry(where, weight.shape[2:], steps, pads, spread, size)


def _check(where: str, axes: str, input: Any, weight: Any, bias: Any, groups: Any, weight_axis: int = 1) -> None:
    # weight_axis: the axis of the weight that meets the input's channels.
    shape, kernel, rank = np.shape(input), np.shape(weight), axes.count(",") + 2
    if len(shape) not in (rank, rank + 1):
        raise ShapeError(where, f"input [N, C, {axes}] or [C, {axes}]", f"input {list(shape)}")
    if len(kernel) != rank + 1:
        raise ShapeError(where, f"weight of {rank + 1} axes", f"weight {list(kernel)}")
    if not isinstance(groups, int) or groups < 1 or kernel[0] % groups:
        raise ArgumentError(where, f"groups that divide {kernel[0]}, of weight {list(kernel)}", repr(groups))
    takes = kernel[1] * groups if weight_axis == 1 else kernel[0]
    gives = kernel[0] if weight_axis == 1 else kernel[1] * groups
    if shape[-rank] != takes:
        need = f"input [N, {takes}, {axes}] for weight {list(kernel)}" + (f" in {groups} groups" if groups > 1 else "")
        raise ShapeError(where, need, f"input {list(shape)}")
    if bias is not None and np.shape(bias) != (gives,):
        raise ShapeError(where, f"bias [{gives}] for weight {list(kernel)}", f"bias {list(np.shape(bias))}")


# ops


@op(cast=Cast.LOW)
def conv2d(input: Array, weight: Array, bias: Array | None = None, stride=1, padding=0, dilation=1, groups: int = 1):
    """Slide kernels over images: cross-correlation, as PyTorch's convolution is.

    input [N, C, H, W] or [C, H, W], weight [O, C / groups, KH, KW], bias [O] -> [N, O, rows, columns]. padding may be
    'same' (stride 1) or 'valid'. Products are exact, summed in float32 with the bias, and rounded once.
    Raises ShapeError for shapes that do not fit, ArgumentError for arguments out of range.
    Chellapilla, Puri, Simard 2006, "High performance convolutional neural networks for document processing", sec. 3.
    """
    return _forward("conv2d", input, weight, bias, stride, padding, dilation, groups)


@op(cast=Cast.LOW)
def conv1d(input: Array, weight: Array, bias: Array | None = None, stride=1, padding=0, dilation=1, groups: int = 1):
    """Slide kernels over sequences: `conv2d` with one axis.

    input [N, C, L] or [C, L], weight [O, C / groups, K], bias [O] -> [N, O, windows]; precision and errors as `conv2d`.
    """
    return _forward("conv1d", input, weight, bias, stride, padding, dilation, groups)


@op(cast=Cast.LOW)
def conv3d(input: Array, weight: Array, bias: Array | None = None, stride=1, padding=0, dilation=1, groups: int = 1):
    """Slide kernels over volumes: `conv2d` with three axes.

    input [N, C, D, H, W] or [C, D, H, W], weight [O, C / groups, KD, KH, KW], bias [O] -> [N, O, D', H', W']; precision
    and errors as `conv2d`.
    """
    return _forward("conv3d", input, weight, bias, stride, padding, dilation, groups)


@op(cast=Cast.LOW)
def conv_transpose2d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride=1,
    padding=0,
    output_padding=0,
    groups: int = 1,
    dilation=1,
):
    """The transpose of `conv2d`, as its input's gradient computes it: each pixel stamps its kernel, stamps add up.

    input [N, O, H, W] or [O, H, W], weight [O, C / groups, KH, KW], bias [C] -> [N, C, ...]: output_padding rows and
    columns longer, fewer than the stride. Precision and errors as `conv2d`.
    Dumoulin, Visin 2016, arXiv:1603.07285, ch. 4.
    """
    how = stride, padding, output_padding, dilation
    return _transposed_forward("conv_transpose2d", input, weight, bias, groups, *how)


@op(cast=Cast.LOW)
def conv_transpose1d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride=1,
    padding=0,
    output_padding=0,
    groups: int = 1,
    dilation=1,
):
    """The transpose of `conv1d`: input [N, O, L] or [O, L], weight [O, C / groups, K], bias [C] -> [N, C, L'].

    See `conv_transpose2d`.
    """
    how = stride, padding, output_padding, dilation
    return _transposed_forward("conv_transpose1d", input, weight, bias, groups, *how)


@op(cast=Cast.LOW)
def conv_transpose3d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride=1,
    padding=0,
    output_padding=0,
    groups: int = 1,
    dilation=1,
):
    """The transpose of `conv3d`: input [N, O, D, H, W] or [O, D, H, W], weight [O, C / groups, KD, KH, KW], bias [C].

    See `conv_transpose2d`.
    """
    how = stride, padding, output_padding, dilation
    return _transposed_forward("conv_transpose3d", input, weight, bias, groups, *how)


# their checks and backwards


def _convolution(op: Op, axes: str) -> None:
    def check(input, weight, bias, stride, padding, dilation, groups):
        _check(op.name, axes, input, weight, bias, groups)
        covered(op.name, input, weight, stride, padding, dilation)

    op.check(check)
    op.backward(input="weight", weight="input")(conv_backward)


def _transposed_convolution(op: Op, axes: str) -> None:
    def check(input, weight, bias, stride, padding, output_padding, groups, dilation):
        _check(op.name, axes, input, weight, bias, groups, weight_axis=0)
        transposed(op.name, input, weight, stride, padding, output_padding, dilation)

    op.check(check)
    op.backward(input="weight", weight="input")(conv_transpose_backward)


for _op, _axes in ((conv1d, "L"), (conv2d, "H, W"), (conv3d, "D, H, W")):
    _convolution(_op, _axes)
for _op, _axes in ((conv_transpose1d, "L"), (conv_transpose2d, "H, W"), (conv_transpose3d, "D, H, W")):
    _transposed_convolution(_op, _axes)

"""Convolution: images gathered into columns, a block at a time, and one matrix product per block.

The three products of a convolution (its output, the gradient of its input, the gradient of its weight) are linear in
each of their operands and are written once; a transposed convolution is the second of them run forward.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import ArgumentError, ShapeError
from ..core.op import Array, Saved, op
from ..core.policy import Cast
from ..core.replay import Taped, apply
from .sums import times
from .windows import Windows, add_columns, batched, columns_by_block, fold, pair, unbatched, unfold, windows

__all__ = ["conv1d", "conv2d", "conv_transpose2d", "fold", "unfold"]


# the three products: images [N, C, H, W], weight [O, C / groups, KH, KW], maps [N, O, rows, columns]


def convolve(images: Array, weight: Array, w: Windows, groups: int) -> Array:
    """The maps: each window times each kernel."""
    kernels, (rows, columns), batch = _kernels(weight, groups), w.count, images.shape[0]
    if isinstance(images, Taped) or isinstance(weight, Taped):
        return (kernels @ _columns(images, w, groups)).reshape(batch, weight.shape[0], rows, columns)
    maps = np.empty_like(images, shape=(*kernels.shape[:2], rows * columns * batch), order="C")
    for part, found in columns_by_block(images, w):
        times(kernels, _grouped(found, groups), maps[:, :, part])
    return maps.reshape(weight.shape[0], rows, columns, batch).transpose(3, 0, 1, 2)


def input_gradient(maps: Array, weight: Array, w: Windows, groups: int) -> Array:
    """The images: each window the kernels weighted by the maps, summed where windows overlap."""
    kernels, channels, batch = _kernels(weight, groups).swapaxes(1, 2), weight.shape[1] * groups, maps.shape[0]
    if isinstance(maps, Taped) or isinstance(weight, Taped):
        columns = kernels @ _by_group(maps, groups)
        columns = columns.reshape(batch, columns.shape[1] * columns.shape[2], columns.shape[3])
        return apply(fold, columns, w.size, w.kernel, w.dilation, w.pads, w.stride)
    rows = _rows(maps, groups)
    by = np.multiply if rows.shape[1] == 1 else times  # with one map per group the product is an outer one
    if w.pointwise:
        return by(kernels, rows).reshape(channels, *w.size, batch).transpose(3, 0, 1, 2)
    home = np.zeros_like(maps, shape=(channels, *w.padded, batch), order="C")
    line = w.count[1] * batch
    for first, end in w.row_blocks(channels, batch):
        columns = by(kernels, rows[:, :, first * line : end * line])
        add_columns(home, columns.reshape(channels, *w.kernel, end - first, w.count[1], batch), w, first, end)
    return w.crop(home).transpose(3, 0, 1, 2)


def weight_gradient(images: Array, maps: Array, w: Windows, groups: int) -> Array:
    """The kernels: each window times its maps, summed over windows and batch."""
    shape = (maps.shape[1], images.shape[1] // groups, *w.kernel)
    if isinstance(images, Taped) or isinstance(maps, Taped):
        return (_by_group(maps, groups) @ _columns(images, w, groups).swapaxes(-1, -2)).sum(0).reshape(shape)
    rows, total = _rows(maps, groups), None
    for part, columns in columns_by_block(images, w):
        product = times(rows[:, :, part], _grouped(columns, groups).swapaxes(1, 2))
        total = product if total is None else total + product
    return total.reshape(shape)


def _kernels(weight: Array, groups: int) -> Array:
    return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1] * weight.shape[2] * weight.shape[3])


def _grouped(columns: Array, groups: int) -> Array:
    return columns.reshape(groups, columns.shape[0] // groups, columns.shape[1])


def _rows(maps: Array, groups: int) -> Array:
    batch, channels, high, wide = maps.shape
    return maps.transpose(1, 2, 3, 0).reshape(groups, channels // groups, high * wide * batch)


def _by_group(maps: Array, groups: int) -> Array:
    batch, channels, high, wide = maps.shape
    return maps.reshape(batch, groups, channels // groups, high * wide)


def _columns(images: Array, w: Windows, groups: int) -> Array:
    found = apply(unfold, images, w.kernel, w.dilation, w.pads, w.stride)
    return found.reshape(found.shape[0], groups, found.shape[1] // groups, found.shape[2])


def _with_bias(maps: Array, bias: Array | None) -> Array:
    if bias is not None:
        maps += bias.reshape(-1, 1, 1)
    return maps


def _gradients(dy: Array, saved: Saved, four: Any, needs: Any, groups: int) -> tuple[Any, Any, Any]:
    # four: what gives an array its four axes
    dy = four(dy)
    dx = input_gradient(dy, four(saved.weight), saved.windows, groups) if needs[0] else None
    dw = weight_gradient(four(saved.input), dy, saved.windows, groups) if needs[1] else None
    return dx, dw, dy.sum((0, 2, 3)) if needs[2] else None


# ops


@op(cast=Cast.LOW)
def conv2d(input: Array, weight: Array, bias: Array | None = None, stride=1, padding=0, dilation=1, groups=1):
    """Slide kernels over images: cross-correlation, as PyTorch's convolution is.

    input [N, C, H, W] or [C, H, W], weight [O, C / groups, KH, KW], bias [O] -> [N, O, rows, columns]. padding may be
    'same' (stride 1) or 'valid'. Products are exact, summed in float32 with the bias, and rounded once.
    Raises ShapeError for shapes that do not fit, ArgumentError for arguments out of range.
    Chellapilla, Puri, Simard 2006, "High performance convolutional neural networks for document processing", sec. 3.
    """
    w = windows("conv2d", weight.shape[2:], stride, padding, dilation, input.shape[-2:])
    maps = _with_bias(convolve(batched(input), weight, w, groups), bias)
    return unbatched(maps, input.ndim), Saved(input=input, weight=weight, windows=w)


@conv2d.check
def conv2d_check(input, weight, bias, stride, padding, dilation, groups):
    _check("conv2d", "H, W", input, weight, bias, groups, weight_axis=1)
    windows("conv2d", weight.shape[2:], stride, padding, dilation, input.shape[-2:])


@conv2d.backward(input="weight", weight="input")
def conv2d_backward(dy, saved, needs, stride, padding, dilation, groups):
    dx, dw, db = _gradients(dy, saved, batched, needs, groups)
    return None if dx is None else unbatched(dx, dy.ndim), dw, db


@op(cast=Cast.LOW)
def conv1d(input: Array, weight: Array, bias: Array | None = None, stride=1, padding=0, dilation=1, groups=1):
    """Slide kernels over sequences: `conv2d` with one axis.

    input [N, C, L] or [C, L], weight [O, C / groups, K], bias [O] -> [N, O, windows]; precision and errors as `conv2d`.
    """
    w = windows1d(input, weight, stride, padding, dilation)
    maps = _with_bias(convolve(tall(input), tall(weight), w, groups), bias)
    return flat(maps, input.ndim), Saved(input=input, weight=weight, windows=w)


@conv1d.check
def conv1d_check(input, weight, bias, stride, padding, dilation, groups):
    _check("conv1d", "L", input, weight, bias, groups, weight_axis=1)
    windows1d(input, weight, stride, padding, dilation)


@conv1d.backward(input="weight", weight="input")
def conv1d_backward(dy, saved, needs, stride, padding, dilation, groups):
    dx, dw, db = _gradients(dy, saved, tall, needs, groups)
    return None if dx is None else flat(dx, dy.ndim), None if dw is None else flat(dw, 3), db


@op(cast=Cast.LOW)
def conv_transpose2d(
    input: Array, weight: Array, bias: Array | None = None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    """The transpose of `conv2d`, as its input's gradient computes it: each pixel stamps its kernel, stamps add up.

    input [N, O, H, W] or [O, H, W], weight [O, C / groups, KH, KW], bias [C] -> [N, C, ...]: output_padding rows and
    columns longer, fewer than the stride. Precision and errors as `conv2d`.
    Dumoulin, Visin 2016, arXiv:1603.07285, ch. 4.
    """
    w = transposed(input, weight, stride, padding, output_padding, dilation)
    images = _with_bias(input_gradient(batched(input), weight, w, groups), bias)
    return unbatched(images, input.ndim), Saved(input=input, weight=weight, windows=w)


@conv_transpose2d.check
def conv_transpose2d_check(input, weight, bias, stride, padding, output_padding, groups, dilation):
    _check("conv_transpose2d", "H, W", input, weight, bias, groups, weight_axis=0)
    transposed(input, weight, stride, padding, output_padding, dilation)


@conv_transpose2d.backward(input="weight", weight="input")
def conv_transpose2d_backward(dy, saved, needs, stride, padding, output_padding, groups, dilation):
    images, w = batched(dy), saved.windows
    dx = unbatched(convolve(images, saved.weight, w, groups), dy.ndim) if needs[0] else None
    dw = weight_gradient(images, batched(saved.input), w, groups) if needs[1] else None
    return dx, dw, images.sum((0, 2, 3)) if needs[2] else None


def tall(array: Array) -> Array:
    """Sequences [N, C, L] or [C, L] as images of one row: [N, C, 1, L]."""
    return array.reshape(*(1,) * (3 - array.ndim), *array.shape[:-1], 1, array.shape[-1])


def flat(maps: Array, ndim: int) -> Array:
    """Images of one row as sequences: [N, C, 1, L] -> [N, C, L], or [C, L] if `ndim` is 2."""
    return maps.reshape(*maps.shape[3 - ndim : 2], maps.shape[3])


def windows1d(input: Array, weight: Array, stride: Any, padding: Any, dilation: Any) -> Windows:
    """The windows of conv1d's arguments over images of one row. Raises as `windows`."""

    def one(name: str, value: Any, least: int) -> int:
        return pair("conv1d", name, value if np.ndim(value) else (value, value), least)[1]

    pads = padding if isinstance(padding, str) else (0, one("padding", padding, 0))
    steps = (1, one("stride", stride, 1)), (1, one("dilation", dilation, 1))
    return windows("conv1d", (1, weight.shape[-1]), steps[0], pads, steps[1], (1, input.shape[-1]))


def transposed(input: Array, weight: Array, stride: Any, padding: Any, output_padding: Any, dilation: Any) -> Windows:
    """The windows over what conv_transpose2d makes, whose maps its input is. Raises as `windows`."""
    where = "conv_transpose2d"
    steps, spread = pair(where, "stride", stride, 1), pair(where, "dilation", dilation, 1)
    pads, more = pair(where, "padding", padding, 0), pair(where, "output_padding", output_padding, 0)
    if more[0] >= steps[0] or more[1] >= steps[1]:
        raise ArgumentError(where, f"output_padding smaller than stride {steps}", f"{more}")
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + 1 + m
        for n, s, p, d, k, m in zip(input.shape[-2:], steps, pads, spread, weight.shape[2:], more, strict=True)
    )
    return windows(where, weight.shape[2:], steps, pads, spread, size)


def _check(where: str, axes: str, input: Any, weight: Any, bias: Any, groups: Any, weight_axis: int) -> None:
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

"""The geometry of the arguments of convolution and pooling; im2col and col2im.

Computation is in the layout [C, H, W, N], batch innermost: a row of a window is then one long run of memory, also for
small images, and one matrix product serves the whole batch. Results are views of that with PyTorch's order of axes.
Images here stand for sequences and volumes too, which have one axis or three in place of H and W.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ampkit.base.conv_geometry import Axes, ConvGeometry
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.arguments import shown
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import are_ints, check_addressable, describe_int_tuple, int_tuple

_NONE = (0, 0)


def conv_geometry(
    where: str, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any, ceil: bool = False
) -> ConvGeometry:
    """The geometry of an op's arguments over inputs of `size`; each is an integer, or one per axis.

    padding may be 'same', 'valid' or (before, after) by axis. ceil: where the stride leaves pixels over, one more
    window reaches beyond the edge, as in PyTorch's ceil_mode.
    Raises ArgumentError for an argument out of range, ShapeError if no window fits.
    """
    arguments = [_hashable(where, v) for v in (kernel, stride, padding, dilation, size)]
    return _conv_geometry(where, *arguments, bool(ceil))


def _hashable(where: str, value: Any) -> Any:
    # A key of the cache: an integer, text, or a tuple of such.
    if type(value) is int or (type(value) is tuple and are_ints(value)):  # most are
        return value
    if isinstance(value, (list, tuple)):
        return tuple([_hashable(where, each) for each in value])
    if not isinstance(value, (int, str, np.integer)):
        raise ArgumentError(where, "integers, or as many as there are axes", shown(value))
    return value


@lru_cache(4096)
def _conv_geometry(
    where: str, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any, ceil: bool
) -> ConvGeometry:
    axes = len(size)
    kernel, stride = int_tuple(where, "kernel_size", kernel, 1, axes), int_tuple(where, "stride", stride, 1, axes)
    dilation = int_tuple(where, "dilation", dilation, 1, axes)
    geometry = ConvGeometry(kernel, stride, dilation, _padding(where, padding, kernel, stride, dilation), size)
    geometry = _with_ceil_mode(geometry) if ceil else geometry
    check_addressable(where, geometry.padded_size)
    if min(geometry.output_size) < 1:
        need = [d * (k - 1) + 1 - sum(p) for k, d, p in zip(kernel, dilation, geometry.padding, strict=True)]
        least, got = (" x ".join(map(str, axes)) for axes in (need, size))
        raise ShapeError(where, f"images of at least {least} for this kernel and padding", got)
    return geometry


def _padding(where: str, padding: Any, kernel: Axes, stride: Axes, dilation: Axes) -> tuple[tuple[int, int], ...]:
    axes = len(kernel)
    if padding == "valid":
        return (_NONE,) * axes
    if padding == "same":
        if max(stride) > 1:
            raise ArgumentError(where, "stride 1 with padding='same'", f"stride {stride}")
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple([(n // 2, n - n // 2) for n in total])
    if isinstance(padding, str):
        raise ArgumentError(where, f"padding 'same', 'valid', {describe_int_tuple(axes)}", repr(padding))
    if isinstance(padding, tuple) and len(padding) == axes and isinstance(padding[0], tuple):
        return tuple([int_tuple(where, "padding", each, 0) for each in padding])  # type: ignore[misc]  # pairs of ints
    return tuple([(n, n) for n in int_tuple(where, "padding", padding, 0, axes)])


def _with_ceil_mode(geometry: ConvGeometry) -> ConvGeometry:
    # Pad for one more window where the last one leaves pixels over, unless that begins beyond input and left padding.
    padding, axes = [], zip(*geometry, strict=True)
    for k, s, d, (before, after), n in axes:
        room = n + before + after - d * (k - 1) - 1
        left, start = room % s, room // s * s + s
        padding.append((before, after + s - left if left and start < n + before else after))
    return geometry._replace(padding=tuple(padding))


def batched(images: Array, axes: int = 2) -> Array:
    """Images with a batch axis: [N, C, H, W], or [C, H, W] as [1, C, H, W]. axes: the number of spatial axes."""
    return images if images.ndim == axes + 2 else images.reshape(1, *images.shape)


def unbatched(images: Array, ndim: int) -> Array:
    """Undo `batched` for an input of `ndim` axes."""
    return images.reshape(images.shape[1:]) if ndim < images.ndim else images


def batch_last(images: Array) -> Array:
    """[N, C, H, W] -> [C, H, W, N]."""
    return images.transpose(*range(1, images.ndim), 0)


def batch_first(images: Array) -> Array:
    """[C, H, W, N] -> [N, C, H, W]."""
    return images.transpose(images.ndim - 1, *range(images.ndim - 1))


def to_2d(images: Array, axes: int) -> Array:
    """A batch of images, or a single one, as [N, C, H, W] or more axes: sequences become images of one row."""
    images = batched(images, axes)
    return images if axes > 1 else images.reshape(*images.shape[:2], 1, images.shape[2])


def from_2d(images: Array, ndim: int, axes: int) -> Array:
    """Undo `to_2d` for an input of `ndim` axes."""
    images = images if axes > 1 else images.reshape(*images.shape[:2], images.shape[3])
    return unbatched(images, ndim)


def padded(images: Array, geometry: ConvGeometry, fill: float = 0) -> Array:
    """Images [N, C, H, W] as contiguous [C, H, W, N], padded with `fill`."""
    moved = batch_last(images)
    if geometry.padded_size == geometry.input_size:
        return moved if moved.flags.c_contiguous else moved.copy()
    out = np.full_like(moved, fill, shape=(len(moved), *geometry.padded_size, moved.shape[-1]), order="C")
    geometry.crop(out)[...] = moved
    return out


def add_columns(out: Array, columns: Array, geometry: ConvGeometry, first: int, end: int) -> None:
    """col2im: add columns [C, KH, KW, rows, W', N] of output rows first..end to the padded images `out`."""
    for tap, pixels in geometry.taps(first, end):
        out[pixels] += columns[tap]


@op(cast=Cast.KEEP, moves=True)
def unfold_(input: Array, geometry):
    """im2col of images [N, C, H, W], or of one: columns [N, C * kernel, windows]."""
    source = padded(batched(input, len(geometry.input_size)), geometry)
    channels, batch = source.shape[0], source.shape[-1]
    out = np.empty_like(source, shape=(channels, *geometry.kernel, *geometry.output_size, batch), order="C")
    for tap, pixels in geometry.taps():
        out[tap] = source[pixels]
    columns = out.reshape(channels * prod(geometry.kernel), prod(geometry.output_size), batch)
    return unbatched(columns.transpose(2, 0, 1), input.ndim + 1 - len(geometry.input_size)), Saved()


@unfold_.backward
def unfold_backward(dy, saved, needs, geometry):
    return apply(fold_, dy, geometry)


@op(cast=Cast.KEEP)
def fold_(input: Array, geometry):
    """col2im, the transpose of `unfold_`: images of columns [N, C * kernel, windows], overlapping values summed."""
    columns = batched(input, 1)
    batch, channels = len(columns), columns.shape[1] // prod(geometry.kernel)
    out = np.zeros_like(columns, shape=(channels, *geometry.padded_size, batch), order="C")
    columns = columns.transpose(1, 2, 0).reshape(channels, *geometry.kernel, *geometry.output_size, batch)
    add_columns(out, columns, geometry, 0, geometry.output_size[0])
    return unbatched(batch_first(geometry.crop(out)), input.ndim - 1 + len(geometry.input_size)), Saved()


@fold_.backward
def fold_backward(dy, saved, needs, geometry):
    return apply(unfold_, dy, geometry)


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The sliding windows of images as columns (im2col).

    input [N, C, H, W] or [C, H, W] -> [N, C * kernel, windows] in the input's dtype. padding may also be 'same',
    'valid' or ((top, bottom), (left, right)). Raises ShapeError if no window fits.
    Chellapilla, Puri, Simard 2006, "High performance convolutional neural networks for document processing", sec. 3.
    """
    if input.ndim not in (3, 4):
        raise ShapeError("unfold", "input [N, C, H, W] or [C, H, W]", f"input {list(input.shape)}")
    return unfold_(input, conv_geometry("unfold", kernel_size, stride, padding, dilation, tuple(input.shape[-2:])))


def fold(
    input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Images from columns, overlapping values summed (col2im): the transpose of `unfold`.

    input [N, C * kernel, windows] or [C * kernel, windows] -> [N, C, *output_size] in the input's dtype, summed in
    float32. Raises ShapeError for columns that do not fit such images.
    """
    size = int_tuple("fold", "output_size", output_size, 1)
    geometry = conv_geometry("fold", kernel_size, stride, padding, dilation, size)
    kernel, total = prod(geometry.kernel), prod(geometry.output_size)
    if input.ndim not in (2, 3) or input.shape[-2] % kernel or input.shape[-1] != total:
        need = f"input [..., a multiple of {kernel}, {total}] for images {size}"
        raise ShapeError("fold", need, f"input {list(input.shape)}")
    return fold_(input, geometry)

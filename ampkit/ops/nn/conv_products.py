"""The three bilinear products of a convolution, by im2col and matrix products.

images [N, C, H, W], weight [O, C / groups, KH, KW], output and dy [N, O, H', W']; sequences and volumes likewise. The
output and the input gradient take a product per image: as BLAS rounds by the shapes of a product, the bits of an image
would else depend on how many others are in its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.core.autograd.traced_array import TracedArray, apply
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array

from ..reduction.dot_products import matmul_arrays
from .conv_geometry import add_columns, batch_first, batch_last, fold_, padded, unfold_


def convolve(images: Array, weight: Array, geometry: ConvGeometry, groups: int) -> Array:
    """The output of a convolution: each window times each kernel."""
    kernels, shape = _kernels(weight, groups), (images.shape[0], weight.shape[0], *geometry.output_size)
    if isinstance(images, TracedArray) or isinstance(weight, TracedArray):
        return (kernels @ _columns(images, geometry, groups)).reshape(shape)
    if geometry.pointwise:
        return (kernels @ _by_group(images, groups)).reshape(shape)
    out = np.empty_like(images, shape=(len(images), *kernels.shape[:2], prod(geometry.output_size)), order="C")
    for part in geometry.batch_blocks(*images.shape[:2]):
        found, width = out[part], prod(geometry.output_size[1:])
        for (first, end), columns in columns_by_block(images[part], geometry):
            windows = columns.reshape(groups, kernels.shape[2], (end - first) * width, len(found))
            found[..., first * width : end * width] = kernels @ windows.transpose(3, 0, 1, 2).copy()
    return out.reshape(shape)


def input_gradient(dy: Array, weight: Array, geometry: ConvGeometry, groups: int) -> Array:
    """The gradient of the images: per window the kernels weighted by dy, summed where windows overlap."""
    kernels, channels, batch = _kernels(weight, groups).swapaxes(1, 2), weight.shape[1] * groups, dy.shape[0]
    if isinstance(dy, TracedArray) or isinstance(weight, TracedArray):
        columns = kernels @ _by_group(dy, groups)
        return apply(fold_, columns.reshape(batch, columns.shape[1] * columns.shape[2], columns.shape[3]), geometry)
    rows = _by_group(dy, groups)
    multiply = np.multiply if rows.shape[2] == 1 else np.matmul  # an outer product of one output channel per group
    if geometry.pointwise:
        return multiply(kernels, rows).reshape(batch, channels, *geometry.input_size)
    out = np.zeros_like(dy, shape=(channels, *geometry.padded_size, batch), order="C")
    width = prod(geometry.output_size[1:])
    for part in geometry.batch_blocks(batch, channels):
        for first, end in geometry.row_blocks(channels, len(rows[part])):
            columns = multiply(kernels, rows[part, ..., first * width : end * width])
            shape = len(columns), channels, *geometry.kernel, end - first, *geometry.output_size[1:]
            add_columns(out[..., part], batch_last(columns.reshape(shape)).copy(), geometry, first, end)
    return batch_first(geometry.crop(out))


def weight_gradient(images: Array, dy: Array, geometry: ConvGeometry, groups: int) -> Array:
    """The gradient of the weight: each window times its dy, summed over windows and batch."""
    shape = (dy.shape[1], images.shape[1] // groups, *geometry.kernel)
    if isinstance(images, TracedArray) or isinstance(dy, TracedArray):
        columns = _columns(images, geometry, groups)
        return blocked_sum(_by_group(dy, groups) @ columns.swapaxes(-1, -2), 0).reshape(shape)
    rows = batch_last(dy).reshape(groups, dy.shape[1] // groups, prod(dy.shape[2:]) * dy.shape[0])
    total: Any = None
    width = prod(geometry.output_size[1:]) * len(images)
    for (first, end), columns in columns_by_block(images, geometry):
        at = slice(first * width, end * width)
        windows = columns.reshape(groups, columns.shape[0] // groups, columns.shape[1])
        product = matmul_arrays(rows[:, :, at], windows.swapaxes(1, 2))
        total = product if total is None else total + product
    return total.reshape(shape)


def columns_by_block(images: Array, geometry: ConvGeometry) -> Iterator[tuple[tuple[int, int], Array]]:
    """im2col a block at a time: (first and end of its output rows, [C * kernel, columns]) of images [N, C, H, W].

    A column is a window of an image; there are W' * N in a row. The array is a reused buffer, valid until the next.
    """
    source = padded(images, geometry)
    channels, batch, buffer = source.shape[0], source.shape[-1], None
    width = prod(geometry.output_size[1:]) * batch
    if geometry.pointwise:
        yield (0, geometry.output_size[0]), source.reshape(channels, geometry.output_size[0] * width)
        return
    for first, end in geometry.row_blocks(channels, batch):
        shape = (channels, *geometry.kernel, end - first, *geometry.output_size[1:], batch)
        if buffer is None or buffer.shape != shape:
            buffer = np.empty_like(source, shape=shape, order="C")
        for tap, pixels in geometry.taps(first, end):
            buffer[tap] = source[pixels]
        yield (first, end), buffer.reshape(channels * prod(geometry.kernel), (end - first) * width)


def _kernels(weight: Array, groups: int) -> Array:
    # [groups, O / groups, C / groups * kernel]
    return weight.reshape(groups, weight.shape[0] // groups, prod(weight.shape[1:]))


def _by_group(dy: Array, groups: int) -> Array:
    # [N, groups, O / groups, H' W']
    batch, channels, *size = dy.shape
    return dy.reshape(batch, groups, channels // groups, prod(size))


def _columns(images: Array, geometry: ConvGeometry, groups: int) -> Array:
    # [N, groups, C / groups * kernel, windows]
    columns = apply(unfold_, images, geometry)
    return columns.reshape(columns.shape[0], groups, columns.shape[1] // groups, columns.shape[2])

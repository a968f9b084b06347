"""Convolutions with kernels of 3 x 3 and stride 1 by Winograd's algorithm, in float32: kernels/nn/winograd.cpp.

They multiply 2.25 times less often than oneDNN's. On a CPU without units for 16 bits, images and kernels are read as
they are stored, and results are rounded once.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import TYPE_CHECKING, Any

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import DType, float32
from ampkit.base.version_counter import derived_value

from .caching_allocator import address
from .channels_last import empty_channels_last, nhwc, to_channels_last
from .native.arrays import Function, HostArray, empty, reshape_view, supported
from .native.library import has_products

if TYPE_CHECKING:
    from .onednn.convolution import Conv

_transform_kernels = Function("winograd_kernels", "pa")
_transformed_size = Function("winograd_kernels_size", "ii", ctypes.c_int64)
_output = Function("winograd_output", "aapaiiii", ctypes.c_int64)
_weight_gradient = Function("winograd_weight_gradient", "aaaiiii", ctypes.c_int64)

# Multiply-adds of the definition for an image, so that the bits of an image do not depend on the batch it is in. For
# fewer, as for fewer tiles of 2 x 2 outputs, the transforms take longer than they save.
_MIN_MACS, _MIN_TILES = 1 << 19, 4
_MIN_MACS_OF_BATCH, _MIN_TILES_OF_BATCH = 1 << 25, 32  # for a weight gradient, which sums over the batch


def applies(w: ConvGeometry, groups: int) -> bool:
    """Whether this is the algorithm of such convolutions, at some sizes."""
    known = w.kernel == (3, 3) and w.stride == w.dilation == (1, 1) and groups == 1
    return known and has_products()


def _is_profitable(
    c: Conv, inputs: int, outputs: int, size: tuple[int, ...], min_macs: int, min_tiles: int, images: int = 1
) -> bool:
    # inputs, outputs: channels; size: of the images that are written. At least 3/4 of the pixels in tiles are outputs.
    if c.dtype != float32 or inputs < 16 or outputs < 32 or 0 in c.images or not applies(c.geometry, c.groups):
        return False
    pixels, tiles = (images * prod(axes) for axes in (size, [(n + 1) // 2 for n in size]))
    return tiles >= min_tiles and 3 * tiles <= pixels and 9 * pixels * inputs * outputs >= min_macs


def is_profitable_for_output(c: Conv) -> bool:
    """Whether the output is faster by Winograd's algorithm than by oneDNN in float32."""
    return _is_profitable(c, c.images[1], c.kernels[0], c.geometry.output_size, _MIN_MACS, _MIN_TILES)


def is_profitable_for_input_grad(c: Conv) -> bool:
    """Whether the input gradient is."""
    return _is_profitable(c, c.kernels[0], c.images[1], c.geometry.input_size, _MIN_MACS, _MIN_TILES)


def is_profitable_for_weight_grad(c: Conv) -> bool:
    """Whether the weight gradient is."""
    inputs = c.images[1]
    least = _MIN_MACS_OF_BATCH, _MIN_TILES_OF_BATCH, c.images[0]
    return inputs >= 32 and _is_profitable(c, inputs, c.kernels[0], c.geometry.output_size, *least)


def conv_output(
    images: HostArray, kernels: HostArray, bias: HostArray | None, w: ConvGeometry, out: DType, version: Any
) -> HostArray | None:
    """The output [N, O, H, W] in `out`, channels-last.

    None where it is not finite, as infinities may become NaN, or an array is not aligned.
    """
    if not supported(images, kernels, bias):
        return None
    packed = _transformed(kernels, version, transposed=False)
    (top, _), (left, _) = w.padding
    return _convolve(images, packed, bias, (top, left), (kernels.shape[0], *w.output_size), out)


def input_gradient(dy: HostArray, kernels: HostArray, w: ConvGeometry, out: DType, version: Any) -> HostArray | None:
    """The input gradient [N, C, H, W] in `out`, channels-last; None as above."""
    if not supported(dy, kernels):
        return None
    packed = _transformed(kernels, version, transposed=True)
    (top, _), (left, _) = w.padding
    return _convolve(dy, packed, None, (2 - top, 2 - left), (kernels.shape[1], *w.input_size), out)


def _transformed(kernels: HostArray, version: Any, transposed: bool) -> HostArray:
    # Kernels [O, C, 3, 3], or those of the transposed convolution, as the C++ function reads them; cached per version.
    def make() -> HostArray:
        taps = kernels.reshape(*kernels.shape[:2], 9)
        taps = taps.transpose(1, 0, 2)[:, :, ::-1] if transposed else taps
        packed = empty((_transformed_size(*taps.shape[:2]),), float32)
        _transform_kernels(address(packed), taps)
        return packed

    found: HostArray | None = derived_value(version, kernels, ("winograd", transposed), make)
    return make() if found is None else found


def _convolve(
    images: HostArray, packed: HostArray, bias: HostArray | None, before: tuple[int, int], size: tuple[int, ...],
    out: DType,
) -> HostArray | None:  # fmt: skip
    # size: channels, height and width. before: padding above and to the left, negative where pixels are left out.
    result = empty_channels_last((len(images), *size), out)
    rows = _rows(to_channels_last(images, images.dtype))
    finite = _output(_rows(result), rows, address(packed), bias, images.shape[2], size[1], *before)
    return result if finite else None


def weight_gradient(images: HostArray, dy: HostArray, w: ConvGeometry, buffer: HostArray | None) -> HostArray | None:
    """The weight gradient [O, C, 3, 3], float32, written to `buffer` if given; None as above."""
    if not supported(images, dy):
        return None
    outputs, inputs = dy.shape[1], images.shape[1]
    out = empty((outputs, inputs, 3, 3), float32) if buffer is None else buffer
    rows = _rows(to_channels_last(images, images.dtype)), _rows(to_channels_last(dy, dy.dtype))
    (top, _), (left, _) = w.padding
    taps = reshape_view(out, (outputs, inputs, 9))
    return out if _weight_gradient(taps, *rows, images.shape[2], dy.shape[2], top, left) else None


def _rows(images: HostArray) -> HostArray:
    # Channels-last images [N, C, H, W] as [N * H, W, C].
    n, channels, height, width = images.shape
    return reshape_view(nhwc(images), (n * height, width, channels))

"""im2col: convolutions with few windows per image as one matrix product, with a window per row.

oneDNN's convolution traverses the whole weight gradient once per image, and feeds the matrix units one row of output at
a time. Where the weight exceeds the L2 cache, or rows are short, that costs more than the arithmetic.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import bfloat16, float32, uint8
from ampkit.base.version_counter import derived_value

from .channels_last import empty_channels_last, nhwc
from .copies import copy
from .native.arrays import reshape_view
from .onednn.gemm import matmul_into
from .onednn.library import has_amx
from .onednn.primitive import HostArray, empty

if TYPE_CHECKING:
    from .onednn.convolution import Conv

_LARGE_WEIGHT, _LARGE_WEIGHT_BFLOAT16 = 1 << 19, 1 << 18  # elements
_FEW_WINDOWS, _SOME_WINDOWS = 16, 64  # per image


def is_profitable_for_weight_grad(c: Conv) -> bool:
    """Whether im2col and one product are faster for the weight gradient; in bfloat16 without AMX, with strides only."""
    few, large = (_SOME_WINDOWS, _LARGE_WEIGHT_BFLOAT16) if c.dtype == bfloat16 else (_FEW_WINDOWS, _LARGE_WEIGHT)
    known = c.groups == 1 and (c.dtype == float32 or has_amx() or max(c.geometry.stride) > 1)
    return known and prod(c.geometry.output_size) <= few and prod(c.kernels) >= large


def is_profitable_for_output(c: Conv) -> bool:
    """Whether im2col is faster for the output: with AMX only, float32 gains nothing."""
    return has_amx() and prod(c.geometry.output_size) <= _FEW_WINDOWS and _has_large_bfloat16_weight(c)


def is_profitable_for_input_grad(c: Conv) -> bool:
    """Whether im2col is faster for the input gradient: with AMX, and for stride 1 only."""
    return (
        has_amx()
        and prod(c.geometry.input_size) <= _FEW_WINDOWS
        and prod(c.geometry.stride) == 1
        and _has_large_bfloat16_weight(c)
    )


def _has_large_bfloat16_weight(c: Conv) -> bool:
    large = c.dtype == bfloat16 and prod(c.kernels) >= _LARGE_WEIGHT
    return large and c.groups == 1 and not c.geometry.pointwise


def conv_output(
    images: HostArray, kernels: HostArray, bias: HostArray | None, c: Conv, version: Any
) -> HostArray | None:
    """The output [N, O, H, W] in c.out from channels-last images; None where oneDNN has no fast product."""
    out = empty_channels_last(c.output, c.out)
    order = (0, *range(2, kernels.ndim), 1)
    return out if _gemm_into(_im2col(nhwc(images), c.geometry), kernels, order, nhwc(out), bias, version) else None


def input_gradient(dy: HostArray, kernels: HostArray, c: Conv, version: Any) -> HostArray | None:
    """The input gradient [N, C, H, W] in c.out from a channels-last output gradient; None as above."""
    w, out = c.geometry, empty_channels_last(c.images, c.out)
    reach = [d * (k - 1) for k, d in zip(w.kernel, w.dilation, strict=True)]
    pads = tuple([(r - before, r - after) for r, (before, after) in zip(reach, w.padding, strict=True)])
    if min(min(pad) for pad in pads) < 0:
        return None
    rows = _im2col(nhwc(dy), w._replace(padding=pads, input_size=w.output_size), backwards=True)
    order = (1, *range(2, kernels.ndim), 0)
    return out if _gemm_into(rows, kernels, order, nhwc(out), None, version) else None


def _gemm_into(
    rows: HostArray, kernels: HostArray, order: tuple[int, ...], out: HostArray, bias: HostArray | None, version: Any
) -> bool:
    # Write rows @ weight.T to `out`; `order` transposes the kernels to [columns of out, columns of rows], a copy cached
    # per version. False where oneDNN has no fast product.
    def make() -> HostArray:
        matrix = empty([kernels.shape[i] for i in order], kernels.dtype)
        copy(matrix, kernels.transpose(order))
        return matrix.reshape(len(matrix), prod(matrix.shape[1:]))

    found: HostArray | None = derived_value(version, kernels, ("patches", order), make)
    matrix = make() if found is None else found
    return matmul_into(rows, matrix.T, reshape_view(out, (-1, len(matrix))), bias)


def weight_gradient(images: HostArray, dy: HostArray, w: ConvGeometry, buffer: HostArray | None) -> HostArray | None:
    """The weight gradient [O, C, KH, KW], float32, from channels-last images and output gradient of one dtype.

    Written to `buffer` if given; None where oneDNN has no fast product.
    """
    rows, (o, c) = _im2col(nhwc(images), w), (dy.shape[1], images.shape[1])
    found, out = empty((o, rows.shape[1]), float32), empty((o, c, *w.kernel), float32) if buffer is None else buffer
    if not matmul_into(nhwc(dy).reshape(dy.size // o, o).T, rows, found):
        return None
    ordered = found.reshape(o, *w.kernel, c).transpose(0, len(w.kernel) + 1, *range(1, len(w.kernel) + 1))
    copy(out, ordered)
    return out


def _im2col(images: HostArray, w: ConvGeometry, backwards: bool = False) -> HostArray:
    # Images [N, H, W, C] -> windows [N * count, KH * KW * C]; backwards: the pixels of a window in reversed order.
    n, c = images.shape[0], images.shape[-1]
    if w.pointwise:
        return images.reshape(-1, c)
    padded = empty((n, *w.padded_size, c), images.dtype)
    padded.view(uint8).fill(0)
    inside = [slice(before, before + size) for (before, _), size in zip(w.padding, w.input_size, strict=True)]
    copy(padded[(slice(None), *inside)], images)
    rows = empty((n, *w.output_size, *w.kernel, c), images.dtype)
    pixels = w.taps()
    for (place, _), (_, met) in zip(pixels, pixels[::-1] if backwards else pixels, strict=True):
        copy(rows[(slice(None),) * (1 + len(w.input_size)) + place[1:]], padded[(slice(None), *met[1:])])
    return rows.reshape(-1, prod(w.kernel) * c)

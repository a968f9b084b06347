"""patches: the products of a convolution with few windows as one matrix product each, over the windows as rows.

oneDNN's own code goes over the whole gradient of the kernels once per image, and gives its matrix units one row of maps
at a time. Where kernels do not fit the second-level cache, or rows are short, that is more than the arithmetic takes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ampkit.base.dtypes import bfloat16, float32, uint8
from ampkit.base.version_counter import derived_value

from .channels_last import channels_last, last
from .onednn.gemm import multiply
from .onednn.primitive import HostArray, empty
from .onednn.reorder import fill

if TYPE_CHECKING:
    from ampkit.ops.nn.conv_geometry import ConvGeometry

    from .onednn.convolution import Conv

_LARGE, _LARGE_FOR_UNITS = 1 << 19, 1 << 18  # elements of kernels
_FEW, _SOME = 16, 64  # windows per image


def pays(c: Conv) -> bool:
    """Whether the gradient of the kernels is faster as one product, in float32 or by matrix units."""
    few, large = (_SOME, _LARGE_FOR_UNITS) if c.dtype == bfloat16 else (_FEW, _LARGE)
    return prod(c.geometry.output_size) <= few and prod(c.kernels) >= large and c.groups == 1


def pays_for_maps(c: Conv) -> bool:
    """Whether the maps are: by matrix units alone, for float32 has nothing to gain."""
    return c.dtype == bfloat16 and prod(c.geometry.output_size) <= _FEW and _large(c)


def pays_for_images(c: Conv) -> bool:
    """Whether the gradient of the images is, which takes windows that lie side by side."""
    return c.dtype == bfloat16 and prod(c.geometry.input_size) <= _FEW and prod(c.geometry.stride) == 1 and _large(c)


def _large(c: Conv) -> bool:
    return prod(c.kernels) >= _LARGE and c.groups == 1 and not c.geometry.pointwise


def maps(images: HostArray, kernels: HostArray, bias: HostArray | None, c: Conv, version: Any) -> HostArray | None:
    """Maps [N, O, H, W] in c.out from images that lie channels-last; None where oneDNN has no fast code."""
    out = channels_last(c.maps, c.out)
    order = (0, *range(2, kernels.ndim), 1)
    return out if _times(_patches(last(images), c.geometry), kernels, order, last(out), bias, version) else None


def image_gradient(dy: HostArray, kernels: HostArray, c: Conv, version: Any) -> HostArray | None:
    """The gradient of the images [N, C, H, W] in c.out, from maps that lie channels-last, or None likewise."""
    w, out = c.geometry, channels_last(c.images, c.out)
    reach = [d * (k - 1) for k, d in zip(w.kernel, w.dilation, strict=True)]
    pads = tuple([(r - before, r - after) for r, (before, after) in zip(reach, w.padding, strict=True)])
    if min(min(pad) for pad in pads) < 0:
        return None
    rows = _patches(last(dy), w._replace(padding=pads, input_size=w.output_size), backwards=True)
    order = (1, *range(2, kernels.ndim), 0)
    return out if _times(rows, kernels, order, last(out), None, version) else None


def _times(
    rows: HostArray, kernels: HostArray, order: tuple[int, ...], out: HostArray, bias: HostArray | None, version: Any
) -> bool:
    # rows times kernels, whose axes in `order` are that of `out`, then those of a row; False where no code is fast.
    # Turned around like that kernels move in short steps, and the product packs them as it goes.
    def make() -> HostArray:
        home = empty([kernels.shape[i] for i in order], kernels.dtype)
        fill(home, kernels.transpose(order))
        return home.reshape(len(home), -1)

    found: HostArray | None = derived_value(version, kernels, ("patches", order), make)
    matrix = make() if found is None else found
    return multiply(rows, matrix.T, out.reshape(-1, len(matrix)), bias)


def kernel_product(images: HostArray, dy: HostArray, w: ConvGeometry, home: HostArray | None) -> HostArray | None:
    """The gradient [O, C, KH, KW], float32, from images and maps of one format that lie channels-last.

    Left in `home` if there is one; None where oneDNN has no fast code for the product.
    """
    rows, (o, c) = _patches(last(images), w), (dy.shape[1], images.shape[1])
    found, out = empty((o, rows.shape[1]), float32), empty((o, c, *w.kernel), float32) if home is None else home
    if not multiply(last(dy).reshape(-1, o).T, rows, found):
        return None
    ordered = found.reshape(o, *w.kernel, c).transpose(0, len(w.kernel) + 1, *range(1, len(w.kernel) + 1))
    fill(out, ordered)
    return out


def _patches(images: HostArray, w: ConvGeometry, backwards: bool = False) -> HostArray:
    # The windows of images [N, H, W, C] as rows [N * windows, KH * KW * C]; backwards: their last pixel first.
    n, c = images.shape[0], images.shape[-1]
    if w.pointwise:
        return images.reshape(-1, c)
    home = empty((n, *w.padded_size, c), images.dtype)
    home.view(uint8).fill(0)
    inside = [slice(before, before + size) for (before, _), size in zip(w.padding, w.input_size, strict=True)]
    fill(home[(slice(None), *inside)], images)
    rows = empty((n, *w.output_size, *w.kernel, c), images.dtype)
    pixels = w.taps()
    for (place, _), (_, met) in zip(pixels, pixels[::-1] if backwards else pixels, strict=True):
        fill(rows[(slice(None),) * (1 + len(w.input_size)) + place[1:]], home[(slice(None), *met[1:])])
    return rows.reshape(-1, prod(w.kernel) * c)

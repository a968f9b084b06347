"""patches: the gradient of a convolution's kernels as one product, of maps with the windows they came from.

oneDNN's own code takes the time of going over the whole gradient once per image. Where that does not fit the
second-level cache and images have few windows, it is more than the arithmetic takes; one product sums over the batch.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from numpy.lib.stride_tricks import as_strided

from ...core.dtypes import float32, uint8
from .formats import reorder
from .gemm import multiply
from .onednn import HostArray, empty

if TYPE_CHECKING:
    from ...ops.windows import Windows

_LARGE = 1 << 19  # elements of a gradient: 2 MiB of float32
_FEW = 16  # windows per image


def pays(kernels: tuple[int, ...], w: Windows, groups: int) -> bool:
    """Whether the product is faster than oneDNN's code for kernels of this shape, in float32 or by matrix units."""
    return w.count[0] * w.count[1] <= _FEW and prod(kernels) >= _LARGE and groups == 1


def kernel_product(images: HostArray, dy: HostArray, w: Windows, home: HostArray | None) -> HostArray | None:
    """The gradient [O, C, KH, KW], float32, from images and maps of one format that lie channels-last.

    Left in `home` if there is one; None where oneDNN has no fast code for the product.
    """
    rows, (o, c) = _patches(images.transpose(0, 2, 3, 1), w), (dy.shape[1], images.shape[1])
    found, out = empty((o, rows.shape[1]), float32), empty((o, c, *w.kernel), float32) if home is None else home
    if not multiply(dy.transpose(0, 2, 3, 1).reshape(-1, o).T, rows, found):
        return None
    ordered = found.reshape(o, *w.kernel, c).transpose(0, 3, 1, 2)
    if not reorder(ordered, out):
        out[...] = ordered
    return out


def _patches(images: HostArray, w: Windows) -> HostArray:
    # The windows of images [N, H, W, C] as rows [N * windows, KH * KW * C].
    n, _, _, c = images.shape
    if w.pointwise:
        return images.reshape(-1, c)
    home = empty((n, *w.padded, c), images.dtype)
    home.view(uint8).fill(0)
    home[:, w.pads[0][0] :, w.pads[1][0] :][:, : w.size[0], : w.size[1]] = images
    image, row, pixel, one = home.strides
    strides = (image, *(s * x for each in (w.stride, w.dilation) for s, x in zip((row, pixel), each, strict=True)), one)
    rows = empty((n, *w.count, *w.kernel, c), images.dtype)
    rows[...] = as_strided(home, rows.shape, strides)
    return rows.reshape(-1, w.kernel[0] * w.kernel[1] * c)

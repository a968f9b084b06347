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
from .images import last
from .onednn import HostArray, empty

if TYPE_CHECKING:
    from ...ops.windows import Windows

_LARGE = 1 << 19  # elements of a gradient: 2 MiB of float32
_FEW = 16  # windows per image


def pays(kernels: tuple[int, ...], w: Windows, groups: int) -> bool:
    """Whether the product is faster than oneDNN's code for kernels of this shape, in float32 or by matrix units."""
    return prod(w.count) <= _FEW and prod(kernels) >= _LARGE and groups == 1


def kernel_product(images: HostArray, dy: HostArray, w: Windows, home: HostArray | None) -> HostArray | None:
    """The gradient [O, C, KH, KW], float32, from images and maps of one format that lie channels-last.

    Left in `home` if there is one; None where oneDNN has no fast code for the product.
    """
    rows, (o, c) = _patches(last(images), w), (dy.shape[1], images.shape[1])
    found, out = empty((o, rows.shape[1]), float32), empty((o, c, *w.kernel), float32) if home is None else home
    if not multiply(last(dy).reshape(-1, o).T, rows, found):
        return None
    ordered = found.reshape(o, *w.kernel, c).transpose(0, len(w.kernel) + 1, *range(1, len(w.kernel) + 1))
    if not reorder(ordered, out):
        out[...] = ordered
    return out


def _patches(images: HostArray, w: Windows) -> HostArray:
    # The windows of images [N, H, W, C] as rows [N * windows, KH * KW * C].
    n, c = images.shape[0], images.shape[-1]
    if w.pointwise:
        return images.reshape(-1, c)
    home = empty((n, *w.padded, c), images.dtype)
    home.view(uint8).fill(0)
    inside = [slice(before, before + size) for (before, _), size in zip(w.pads, w.size, strict=True)]
    home[(slice(None), *inside)] = images
    image, *pixels, one = home.strides
    steps = [s * x for each in (w.stride, w.dilation) for s, x in zip(pixels, each, strict=True)]
    rows = empty((n, *w.count, *w.kernel, c), images.dtype)
    rows[...] = as_strided(home, rows.shape, (image, *steps, one))
    return rows.reshape(-1, prod(w.kernel) * c)

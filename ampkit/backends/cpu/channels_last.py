"""images: arrays [N, C, H, W] that lie in memory as [N, H, W, C], channels innermost, as convolutions and pools want.

A result has its axes as PyTorch orders them and lies channels-last, so a chain of such ops never turns its images
around; what comes otherwise is turned once. Volumes, [N, C, D, H, W], lie likewise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ampkit.base.dtypes import DType, float16

from .device import in_format
from .onednn.primitive import HostArray, Layout, empty
from .onednn.reorder import FORMATS, reorder

if TYPE_CHECKING:
    from ampkit.ops.nn.conv_geometry import ConvGeometry


def channels_last(shape: Sequence[int], dtype: DType) -> HostArray:
    """An array [N, C, H, W] that lies in memory as [N, H, W, C]."""
    n, c, *size = shape
    return first(empty((n, *size, c), dtype))


def last(images: HostArray) -> HostArray:
    """[N, C, H, W] -> [N, H, W, C]."""
    return images.transpose(0, *range(2, images.ndim), 1)


def first(images: HostArray) -> HostArray:
    """[N, H, W, C] -> [N, C, H, W]."""
    return images.transpose(0, images.ndim - 1, *range(1, images.ndim - 1))


def turned(images: HostArray, dtype: DType) -> HostArray:
    """Images [N, C, H, W] in `dtype`, channels-last."""
    images = in_format(images, dtype) if images.dtype == float16 else images  # which oneDNN may not read
    if images.dtype == dtype and last(images).flags.c_contiguous:
        return images
    out = channels_last(images.shape, dtype)
    if min(images.strides) <= 0 or images.dtype not in FORMATS or not reorder(images, out):
        out[...] = images
    return out


def layout(shape: Sequence[int], dtype: DType) -> Layout:
    """The layout of images [N, C, H, W] that lie channels-last."""
    _, c, *size = shape
    steps = [dtype.itemsize * c * prod(size[i + 1 :]) for i in range(len(size))]
    return Layout(shape, dtype, (dtype.itemsize * c * prod(size), dtype.itemsize, *steps))


def geometry(w: ConvGeometry) -> tuple[Any, Any, Any, Any]:
    """Strides, dilations (less one), and pads before and after, as oneDNN takes them."""
    pairs = (w.stride, tuple(d - 1 for d in w.dilation), tuple(p[0] for p in w.padding), tuple(p[1] for p in w.padding))
    stride, dilation, before, after = [(ctypes.c_int64 * len(w.input_size))(*pair) for pair in pairs]
    return stride, dilation, before, after

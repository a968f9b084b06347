"""Channels-last memory format: arrays of shape [N, C, H, W] stored as [N, H, W, C], as convolutions and pooling need.

Results keep PyTorch's order of axes and are stored channels-last, so that a chain of such ops converts its input once.
Volumes, [N, C, D, H, W], likewise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import DType

from .copies import copy
from .onednn.primitive import HostArray, Layout, array_type, empty


def empty_channels_last(shape: Sequence[int], dtype: DType) -> HostArray:
    """An uninitialized array [N, C, H, W], stored channels-last."""
    n, c, *size = shape
    return nchw(empty((n, *size, c), dtype))


def nhwc(images: HostArray) -> HostArray:
    """[N, C, H, W] -> [N, H, W, C]."""
    return images.transpose(0, *range(2, images.ndim), 1)


def nchw(images: HostArray) -> HostArray:
    """[N, H, W, C] -> [N, C, H, W]."""
    return images.transpose(0, images.ndim - 1, *range(1, images.ndim - 1))


def to_channels_last(images: HostArray, dtype: DType) -> HostArray:
    """Images [N, C, H, W] in `dtype`, stored channels-last: themselves if they are, else a copy."""
    if images.dtype == dtype and nhwc(images).flags.c_contiguous:
        return images
    out = empty_channels_last(images.shape, dtype)
    copy(out, images)
    return out


def channels_last_layout(shape: Sequence[int], dtype: DType) -> Layout:
    """The oneDNN layout of channels-last images [N, C, H, W]."""
    _, c, *size = shape
    steps = [dtype.itemsize * c * prod(size[i + 1 :]) for i in range(len(size))]
    return Layout(shape, dtype, (dtype.itemsize * c * prod(size), dtype.itemsize, *steps))


def onednn_geometry(w: ConvGeometry) -> tuple[Any, Any, Any, Any]:
    """Strides, dilations minus one, padding before and after: oneDNN's convention."""
    pairs = (w.stride, tuple(d - 1 for d in w.dilation), tuple(p[0] for p in w.padding), tuple(p[1] for p in w.padding))
    stride, dilation, before, after = [array_type(ctypes.c_int64, len(w.input_size))(*pair) for pair in pairs]
    return stride, dilation, before, after

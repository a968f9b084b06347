"""Maxima of windows of 8-bit codes by oneDNN, over channels-last images."""

from __future__ import annotations

from typing import Any

from ampkit.base.conv_geometry import ConvGeometry

from ..channels_last import channels_last_layout, empty_channels_last, onednn_geometry, to_channels_last
from .primitive import DST, INFERENCE, SRC, Call, HostArray, array_type, attributes, cached

_MAX = 0x1FF


def _call(codes: HostArray, w: ConvGeometry) -> Call:
    of = channels_last_layout(codes.shape, codes.dtype)
    to = channels_last_layout((*codes.shape[:2], *w.output_size), codes.dtype)
    stride, dilation, before, after = onednn_geometry(w)
    kernel: Any = array_type(type(stride)._type_, len(w.kernel))(*w.kernel)
    given = [INFERENCE, _MAX, of.handle, to.handle, stride, kernel, dilation, before, after, attributes()]
    return Call("pooling_forward", given, [(SRC, of), (DST, to)])


def max_pool(codes: HostArray, w: ConvGeometry) -> HostArray | None:
    """The maximum of each window of `codes` [N, C, H, W], uint8 or int8; None where oneDNN has no fast one."""
    call = cached(("max_pool", codes.shape, codes.dtype, w), lambda: _call(codes, w))
    if call is None:
        return None
    out = empty_channels_last((*codes.shape[:2], *w.output_size), codes.dtype)
    call(to_channels_last(codes, codes.dtype), out)
    return out

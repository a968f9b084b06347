"""A test for inf and NaN at memory bandwidth: oneDNN averages groups of elements, and both propagate."""

from __future__ import annotations

import ctypes

import numpy as np

from ampkit.base.dtypes import DType

from ..channels_last import channels_last_layout
from .primitive import ALGORITHM, DST, SRC, TRAINING, Call, HostArray, attributes, cached, empty

_CHANNELS, _WIDTH = 512, 64


def finite(flat: HostArray) -> bool:
    """Whether all of `flat`, one-dimensional, is; a mean that overflows counts as not finite."""
    images = flat.size // (_CHANNELS * _WIDTH)
    rest = flat
    if images:
        call = cached(("means", images, flat.dtype), lambda: _means(images, flat.dtype))
        if call is not None:
            out = empty((images * _CHANNELS,), flat.dtype)
            call(flat, out)
            if not np.isfinite(out.astype(np.float32)).all():
                return False
            rest = flat[images * _CHANNELS * _WIDTH :]
    return bool(np.isfinite(rest.astype(np.float32)).all())


def _means(images: int, dtype: DType) -> Call:
    # Of rows of `_WIDTH` neighbours in each of the channels: an average pool.
    of, to = (channels_last_layout((images, _CHANNELS, 1, width), dtype) for width in (_WIDTH, 1))
    two = ctypes.c_int64 * 2
    window, nothing = two(1, _WIDTH), two(0, 0)
    given = [of.handle, to.handle, window, window, nothing, nothing, nothing, attributes()]  # stride, kernel, and so on
    return Call("pooling_forward", [TRAINING, ALGORITHM["avg_pool"], *given], [(SRC, of), (DST, to)])

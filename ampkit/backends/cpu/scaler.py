"""Body of the unscaling of gradients: a piece of flat memory at a time, looked at while it is in the caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dtypes import float32
from ...overflow import unscale
from .binary import PIECE, calling
from .dnnl import library
from .finite import finite
from .onednn import WORTH, Call, HostArray, Layout, prepared


def _fits(gradient: HostArray, inverse: Any, flags: Any) -> bool:
    return gradient.dtype == float32 and gradient.size >= WORTH and library() is not None


@unscale.on("cpu", when=_fits)
def unscale_cpu(gradient: HostArray, inverse: HostArray | None, flags: HostArray) -> Any:
    first = gradient.size
    for start in range(0, gradient.size, PIECE):
        piece = gradient[start : start + PIECE]
        if inverse is not None:
            _times(piece, inverse.reshape(1))
        if first == gradient.size and not finite(piece):
            bad = ~np.isfinite(piece)
            first = start + int(np.argmax(bad)) if bad.any() else first
    return np.asarray(first, np.int64)


def _times(piece: HostArray, number: HostArray) -> None:
    def build() -> Call:
        return calling("mul", Layout.dense((piece.size,), float32), Layout.dense((1,), float32))

    prepared(("times", piece.size), build)(piece, number, piece)

"""CPU kernel of unscaling: gradients are multiplied and checked for inf and NaN a cache-sized chunk at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.amp.found_inf import unscale
from ampkit.backends.cpu.onednn.all_finite import finite
from ampkit.backends.cpu.onednn.binary import PIECE, calling
from ampkit.backends.cpu.onednn.library import library
from ampkit.backends.cpu.onednn.primitive import MIN_ELEMENTS, Call, HostArray, Layout, cached
from ampkit.base.dtypes import float32


def _fits(gradient: HostArray, inverse: Any, flags: Any) -> bool:
    return gradient.dtype == float32 and gradient.size >= MIN_ELEMENTS and library() is not None


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

    cached(("times", piece.size), build)(piece, number, piece)

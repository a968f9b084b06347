"""Bodies of loss scaling: unscaling and the look for what is not finite in one pass; how the scale moves.

Not yet run on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import backends
from ...core.dtypes import float32, int64
from ...lossscale import move_scale
from ...overflow import unscale
from .kernel import blocks_for, launch, typed

Array = Any  # a CuPy array
BLOCK = 256  # threads
BLOCKS = 4096  # whose first places the threads of one block then compare


def _fits(gradient: Array, inverse: Array | None, flags: Array) -> bool:
    single = inverse is None or inverse.dtype == float32
    return gradient.dtype == float32 and single and bool(gradient.flags.c_contiguous)


@unscale.on("cuda", when=_fits)
def unscale_cuda(gradient: Array, inverse: Array | None, flags: Array) -> Array:
    wide, home = 1 if gradient.data.ptr % 16 else 4, backends.of(gradient)
    blocks = min(blocks_for(gradient.size, BLOCK * wide), BLOCKS)
    firsts, first = home.empty((blocks,), int64), home.empty((), int64)
    count = np.int64(gradient.size)
    launch("scaler", typed("unscale", str(wide)), blocks, BLOCK, gradient, inverse, firsts, count)
    launch("scaler", "unscale_finish", 1, BLOCK, firsts, first, np.int64(blocks))
    return first


@move_scale.on("cuda")
def move_scale_cuda(
    scale: Array, tracker: Array, patience: Array, overflow: Array,
    growth: float, backoff: float, interval: int, hysteresis: int, low: float, high: float,
) -> None:  # fmt: skip
    factors, counts = map(np.float32, (growth, backoff)), map(np.int32, (interval, hysteresis))
    bounds = map(np.float32, (low, high))
    launch("scaler", "move_scale", 1, 1, scale, tracker, patience, overflow, *factors, *counts, *bounds)

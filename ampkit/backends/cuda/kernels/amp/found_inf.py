"""Kernels of loss scaling: unscaling and the read_scalar for what is not finite in one pass; how the scale moves.

Not yet span on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.amp.found_inf import unscale
from ampkit.amp.loss_scale import update_scale
from ampkit.backends.cuda.nvrtc import blocks_for, launch, typed
from ampkit.base.dtypes import float32, int64

Array = Any  # a CuPy array
BLOCK = 256  # threads
BLOCKS = 4096  # whose first places the threads of one block then compare


def _fits(gradient: Array, inverse: Array | None, flags: Array) -> bool:
    single = inverse is None or inverse.dtype == float32
    return gradient.dtype == float32 and single and bool(gradient.flags.c_contiguous)


@unscale.on("cuda", when=_fits)
def unscale_cuda(gradient: Array, inverse: Array | None, flags: Array) -> Array:
    wide, home = 1 if gradient.data.ptr % 16 else 4, backends.backend_of(gradient)
    blocks = min(blocks_for(gradient.size, BLOCK * wide), BLOCKS)
    firsts, first = home.empty((blocks,), int64), home.empty((), int64)
    count = np.int64(gradient.size)
    launch("amp/found_inf", typed("unscale", str(wide)), blocks, BLOCK, gradient, inverse, firsts, count)
    launch("amp/found_inf", "unscale_reduce", 1, BLOCK, firsts, first, np.int64(blocks))
    return first


@update_scale.on("cuda")
def update_scale_cuda(
    scale: Array, tracker: Array, patience: Array, overflow: Array,
    growth: float, backoff: float, interval: int, hysteresis: int, low: float, high: float,
) -> None:  # fmt: skip
    factors, counts = map(np.float32, (growth, backoff)), map(np.int32, (interval, hysteresis))
    bounds = map(np.float32, (low, high))
    launch("amp/found_inf", "update_scale", 1, 1, scale, tracker, patience, overflow, *factors, *counts, *bounds)

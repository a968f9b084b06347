"""CUDA kernels of loss scaling: unscaling, which also finds the first non-finite gradient, and updating the scale."""

from __future__ import annotations

import numpy as np

from ampkit import backends
from ampkit.amp.loss_scale import update_scale
from ampkit.backends.cuda.launch.flat import BLOCK, BLOCKS, grid_for, in_order, width_of
from ampkit.backends.cuda.nvrtc import launch, typed
from ampkit.base.dtypes import Array, float32, int64
from ampkit.kernels.shared.amp import register_unscale


def _unscaled(gradient: Array, inverse: Array | None, flags: Array) -> Array:
    width, backend = width_of(float32, gradient), backends.backend_of(gradient)
    blocks, count = grid_for(gradient.size, width, BLOCKS), np.int64(gradient.size)
    first_of_block, first = backend.empty((blocks,), int64), backend.empty((), int64)
    launch("amp/found_inf", typed("unscale", width), blocks, BLOCK, gradient, inverse, first_of_block, count)
    launch("amp/found_inf", "unscale_reduce", 1, BLOCK, first_of_block, first, np.int64(blocks))
    return first


def _fits(gradient: Array, inverse: Array | None, flags: Array) -> bool:
    return gradient.dtype == float32 and (inverse is None or inverse.dtype == float32) and in_order(gradient)


register_unscale("cuda", _unscaled, _fits)


@update_scale.on("cuda")
def update_scale_cuda(
    scale: Array, tracker: Array, patience: Array, overflow: Array,
    growth: float, backoff: float, interval: int, hysteresis: int, low: float, high: float,
) -> None:  # fmt: skip
    factors, counts = map(np.float32, (growth, backoff)), map(np.int32, (interval, hysteresis))
    bounds = map(np.float32, (low, high))
    launch("amp/found_inf", "update_scale", 1, 1, scale, tracker, patience, overflow, *factors, *counts, *bounds)

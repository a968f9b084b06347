"""CUDA kernels of counting by exponent and of lost updates."""

from __future__ import annotations

import numpy as np

from ampkit.backends.broadcast_layout import memory_order
from ampkit.backends.cuda.launch.flat import BLOCK, grid_for, in_order
from ampkit.backends.cuda.nvrtc import STORED, launch, typed
from ampkit.base.dtypes import Array
from ampkit.kernels.shared.amp import register_counts

BLOCKS = 512  # each adds its counts to those in global memory once


def _without_gaps(values: Array) -> Array | None:
    """`values` as a vector, in the order of memory; None where that takes a copy."""
    order = memory_order(values.shape, ((values.shape, values.strides, values.dtype),))
    ordered = values if order is None else values.transpose(order)
    return ordered.reshape(-1) if in_order(ordered) else None


def _counted(values: Array, counts: Array) -> None:
    flat = _without_gaps(values)
    flat = values.reshape(-1) if flat is None else flat
    grid, count = grid_for(flat.size, 1, BLOCKS), np.int64(flat.size)
    launch("amp/exponents", typed("count_exponents", flat.dtype), grid, BLOCK, flat, counts, count)


def _lost(before: Array, after: Array, counts: Array) -> None:
    grid, count = grid_for(before.size, 1, BLOCKS), np.int64(before.size)
    launch("amp/exponents", "count_lost_updates", grid, BLOCK, before, after, counts, count)


register_counts("cuda", _counted, _lost, lambda values: values.dtype in STORED, in_order)

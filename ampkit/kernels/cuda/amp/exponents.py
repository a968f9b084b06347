"""CUDA kernels of counting by exponent and of lost updates."""

from __future__ import annotations

import numpy as np

from ampkit.amp.exponents import count_exponents, count_lost_updates
from ampkit.backends.broadcast_layout import memory_order
from ampkit.backends.cuda.launch.flat import BLOCK, grid_for, in_order
from ampkit.backends.cuda.nvrtc import launch, typed
from ampkit.base.dtypes import Array, bfloat16, float16, float32

BLOCKS = 512  # each adds its counts to those in global memory once


def _without_gaps(values: Array) -> Array | None:
    """`values` as a vector, in the order of memory; None where that takes a copy."""
    order = memory_order(values.shape, ((values.shape, values.strides, values.dtype),))
    ordered = values if order is None else values.transpose(order)
    return ordered.reshape(-1) if in_order(ordered) else None


def _countable(values: Array, counts: Array) -> bool:
    return values.dtype in (float32, float16, bfloat16) and values.size > 0


@count_exponents.on("cuda", when=_countable)
def count_exponents_cuda(values: Array, counts: Array) -> None:
    flat = _without_gaps(values)
    flat = values.reshape(-1) if flat is None else flat
    grid, count = grid_for(flat.size, 1, BLOCKS), np.int64(flat.size)
    launch("amp/exponents", typed("count_exponents", flat.dtype), grid, BLOCK, flat, counts, count)


def _flat(before: Array, after: Array, counts: Array) -> bool:
    return bool(before.dtype == after.dtype == float32) and before.size > 0 and in_order(before, after)


@count_lost_updates.on("cuda", when=_flat)
def count_lost_updates_cuda(before: Array, after: Array, counts: Array) -> None:
    grid, count = grid_for(before.size, 1, BLOCKS), np.int64(before.size)
    launch("amp/exponents", "count_lost_updates", grid, BLOCK, before, after, counts, count)

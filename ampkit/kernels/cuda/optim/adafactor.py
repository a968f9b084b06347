"""CUDA kernels of Adafactor: seven launches update a factored parameter, three a vector.

The kernels read learning rate, step count and the flag `all_finite` on the device. float64 master weights are left to
the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch.flat import BLOCK, copies_16bit, grid_for, in_order
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, blocks_for, launch
from ampkit.base.dtypes import Array, float32, float64
from ampkit.kernels.shared.optim import register_whole
from ampkit.optim.adafactor import adafactor_update, floor_of

PARTS = 512  # blocks of a sum, at most
ROW_BLOCKS = 4096  # blocks of sums over rows, at most
ROWS_PER_PART = 64  # rows that a thread adds up for a column, or as many more as leave PARTS parts


def _fits(master: Array, *args: Any, **options: Any) -> bool:
    (gradient, rows, columns), copies = args[:3], args[-1]
    supported = master.dtype == float32 and 0 < master.size <= MAX_ELEMENTS
    return supported and in_order(master, gradient, rows, columns, *copies)


def _updated(
    master: Array, gradient: Array, rows: Array, columns: Array | None, steps: Array, lr: Array,
    all_finite: Array | None, copies: list[Array], beta2_decay: float, least: float, least_scale: float, limit: float,
    weight_decay: float, maximize: bool,
) -> None:  # fmt: skip
    backend, count = backends.backend_of(master), np.uint32(master.size)
    height, width = (1, 1) if columns is None else master.shape[-2:]
    parts, decay, row_means = grid_for(master.size, 1, PARTS), np.float64(beta2_decay), None
    sums, rate = backend.empty((parts * 2,), float64), backend.empty((), float32)
    if columns is not None:
        row_means = _update_factors(gradient, rows, columns, steps, all_finite, decay)
    floors = np.float32(least), np.float32(floor_of(least, float32))
    shape = np.uint32(height), np.uint32(width), *floors, np.bool_(maximize), count
    arrays = master, gradient, rows, columns, row_means
    launch("optim/adafactor", "adafactor_norms", parts, BLOCK, *arrays, sums, steps, all_finite, decay, *shape)
    sizes = np.float64(least_scale), np.float64(limit), np.uint32(parts), count
    launch("optim/adafactor", "adafactor_rate", 1, BLOCK, sums, rate, steps, lr, all_finite, *sizes)
    args = *arrays, *copies_16bit(copies), rate, lr, all_finite, np.float64(weight_decay), *shape
    launch("optim/adafactor", "adafactor_update", grid_for(master.size, 1), BLOCK, *args)


def _update_factors(
    gradient: Array, rows: Array, columns: Array, steps: Array, all_finite: Array | None, decay: Any
) -> Array:
    """Update the running mean squares of rows and columns; returns the mean of the rows of each matrix."""
    backend, (height, width) = backends.backend_of(rows), gradient.shape[-2:]
    matrices = gradient.size // (height * width)
    row_means = backend.empty((matrices,), float32)
    blocks, sizes = _row_launch(rows.size, width)
    launch("optim/adafactor", "adafactor_row_squares", blocks, BLOCK, gradient, rows, steps, all_finite, decay, *sizes)
    blocks, sizes = _row_launch(matrices, height)
    launch("optim/adafactor", "adafactor_row_means", blocks, BLOCK, rows, row_means, all_finite, *sizes)
    rows_per_part = max(ROWS_PER_PART, blocks_for(height, PARTS))
    part_count, blocks = blocks_for(height, rows_per_part), blocks_for(columns.size, BLOCK)
    parts = backend.empty((part_count * columns.size,), float64)
    args = gradient, parts, all_finite, *map(np.uint32, (matrices, height, width, rows_per_part))
    launch("optim/adafactor", "adafactor_column_squares", (blocks, part_count), BLOCK, *args)
    args = parts, columns, steps, all_finite, decay, *map(np.uint32, (columns.size, part_count, height))
    launch("optim/adafactor", "adafactor_column_means", blocks, BLOCK, *args)
    return row_means


def _row_launch(rows: int, length: int) -> tuple[int, Any]:
    """Blocks, and the last kernel arguments, of sums over rows of `length`: rows, length, threads per row.

    A row has a power of two of threads up to a warp, or if it is long a block.
    """
    threads = BLOCK if length > 2048 else min(1 << (length - 1).bit_length(), 32)
    return min(blocks_for(rows * threads, BLOCK), ROW_BLOCKS), map(np.uint32, (rows, length, threads))


register_whole(adafactor_update, "cuda", _updated, _fits)

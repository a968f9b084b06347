"""Adafactor's kernel: a parameter in seven launches, a vector in three.

Learning rate, the count of steps and the flag of a real step are read by the kernels. float64 masters are left to the
reference. Not yet span on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch.flat import BLOCK, grid_for, in_order
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, blocks_for, launch
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.optim.adafactor import adafactor_update, floor_of

Array = Any  # a CuPy array
PARTS = 512  # blocks of a sum
LINES = 4096  # blocks of sums of lines
EACH = 64  # rows that a thread adds up for a column, or so many that there are no more than PARTS parts


def _fits(
    master: Array,
    gradient: Array,
    rows: Array,
    columns: Array | None,
    steps: Array,
    lr: Array,
    all_finite: Array | None,
    copies: list[Array],
    **options: Any,
) -> bool:
    known = master.dtype == float32 and 0 < master.size <= MAX_ELEMENTS
    return known and in_order(master, gradient, rows, columns, *copies)


@adafactor_update.on("cuda", when=_fits)
def adafactor_update_cuda(
    master: Array,
    gradient: Array,
    rows: Array,
    columns: Array | None,
    steps: Array,
    lr: Array,
    all_finite: Array | None,
    copies: list[Array],
    beta2_decay: float,
    least: float,
    least_scale: float,
    limit: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    there, by_dtype = backends.backend_of(master), {copy.dtype: copy for copy in copies}
    count, (height, width) = np.uint32(master.size), (1, 1) if columns is None else master.shape[-2:]
    parts = grid_for(master.size, 1, PARTS)
    sums, rate = there.empty((parts * 2,), float64), there.empty((), float32)
    decay, means = np.float64(beta2_decay), None
    if columns is not None:
        means = _factors(gradient, rows, columns, steps, all_finite, decay)
    floors = np.float32(least), np.float32(floor_of(least, float32))
    shape = np.uint32(height), np.uint32(width), *floors, np.bool_(maximize), count
    held = master, gradient, rows, columns, means
    launch("optim/adafactor", "adafactor_norms", parts, BLOCK, *held, sums, steps, all_finite, decay, *shape)
    sizes = np.float64(least_scale), np.float64(limit), np.uint32(parts), count
    launch("optim/adafactor", "adafactor_rate", 1, BLOCK, sums, rate, steps, lr, all_finite, *sizes)
    given = *held, by_dtype.get(float16), by_dtype.get(bfloat16), rate, lr, all_finite, np.float64(weight_decay)
    launch("optim/adafactor", "adafactor_update", grid_for(master.size, 1), BLOCK, *given, *shape)


def _factors(gradient: Array, rows: Array, columns: Array, steps: Array, all_finite: Array | None, decay: Any) -> Array:
    """Rows and columns take in the mean squares of the gradient -> the mean of the rows, of each matrix."""
    there, (height, width) = backends.backend_of(rows), gradient.shape[-2:]
    outer, all_, lines = gradient.size // (height * width), columns.size, rows.size
    means = there.empty((outer,), float32)
    lanes = _lanes(width)
    many = np.uint32(lines), np.uint32(width), np.uint32(lanes)
    blocks = min(blocks_for(lines * lanes, BLOCK), LINES)
    launch("optim/adafactor", "adafactor_row_squares", blocks, BLOCK, gradient, rows, steps, all_finite, decay, *many)
    lanes = _lanes(height)
    many, blocks = (np.uint32(outer), np.uint32(height), np.uint32(lanes)), min(blocks_for(outer * lanes, BLOCK), LINES)
    launch("optim/adafactor", "adafactor_row_means", blocks, BLOCK, rows, means, all_finite, *many)
    each = max(EACH, blocks_for(height, PARTS))
    number, wide = blocks_for(height, each), blocks_for(all_, BLOCK)
    parts = there.empty((number * all_,), float64)
    shape = np.uint32(outer), np.uint32(height), np.uint32(width), np.uint32(each)
    launch("optim/adafactor", "adafactor_column_squares", (wide, number), BLOCK, gradient, parts, all_finite, *shape)
    numbers = np.uint32(all_), np.uint32(number), np.uint32(height)
    launch("optim/adafactor", "adafactor_column_means", wide, BLOCK, parts, columns, steps, all_finite, decay, *numbers)
    return means


def _lanes(length: int) -> int:
    """How many threads add up a line: a power of two up to a warp, or for a long one a block."""
    return BLOCK if length > 2048 else min(1 << (length - 1).bit_length(), 32)

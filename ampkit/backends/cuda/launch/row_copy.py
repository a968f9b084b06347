"""Gather of table rows by index, copied in words of 1 to 16 bytes."""

from __future__ import annotations

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array

from ..nvrtc import MAX_ELEMENTS, blocks_for, launch, typed
from . import segment_sum

BLOCK, BLOCKS = 256, 4096
WORDS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short", 1: "unsigned char"}


def gather_rows(table: Array, index: Array) -> Array:
    """Gather rows: table [outer, rows, width], contiguous, index [n] -> [outer, n, width]."""
    index, (outer, rows, width) = segment_sum.as_keys(index), table.shape
    out = backends.backend_of(table).empty((outer, index.size, width), table.dtype)
    nbytes = width * table.dtype.itemsize
    size = next(s for s in WORDS if nbytes % s == 0 and table.data.ptr % s == 0)
    sizes = np.uint32(outer), np.uint32(index.size), np.int64(rows), np.uint32(nbytes // size)
    grid = min(blocks_for(out.size * table.dtype.itemsize // size, BLOCK), BLOCKS)
    launch("nn/embedding", typed("embedding_forward", WORDS[size], index.dtype), grid, BLOCK, table, index, out, *sizes)
    return out


def can_gather_rows(table: Array, index: Array, rows: int) -> bool:
    """Whether `gather_rows` takes them: a contiguous table and an integer index, neither empty nor too large."""
    size = table.size // max(1, rows) * index.size * table.dtype.itemsize
    return bool(table.flags.c_contiguous) and index.dtype.kind in "iu" and 0 < size <= MAX_ELEMENTS and table.size > 0

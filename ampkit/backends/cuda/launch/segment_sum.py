"""Deterministic segment sums of rows by key, computed on the device without host synchronization.

Keys are sorted by a stable radix sort, and the rows of each key are added in that order in float32. There are no atomic
sums, so results are bitwise reproducible. `last`, the last row of each key, needs no sort.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array, DType, float32, int32

from ..array_layout import contiguous, to_int32_or_int64
from ..nvrtc import MAX_ELEMENTS, STORED, blocks_for, launch, typed

TILE, RUN, BLOCK = 2048, 64, 256  # as in segment_sum.cu
BLOCKS = 4096
UINT32: DType = np.dtype(np.uint32)


class Order(NamedTuple):
    """Sorted keys [n], the position of each before sorting [n], the start of each key [rows + 1]; all uint32."""

    keys: Array
    places: Array
    starts: Array
    rows: int


def fits(values: Array, index: Array, rows: int, dtype: DType) -> bool:
    """Whether `sums` takes `values`, one row per element of `index`, and returns `dtype`."""
    known = values.dtype in STORED and dtype in (values.dtype, float32) and index.dtype.kind in "iu"
    return known and index.size > 0 and 0 < values.size <= MAX_ELEMENTS and 0 < rows < MAX_ELEMENTS


def as_keys(index: Array) -> Array:
    """`index` flattened, as int32 or int64."""
    return contiguous(to_int32_or_int64(index)).reshape(-1)


def ordered(index: Array, rows: int, ignored: int = -1) -> Order:
    """Sort the integers `index` stably; those outside [0, rows) and `ignored` become `rows` and come last."""
    backend, keys, places, n = backends.backend_of(index), as_keys(index), None, index.size
    tiles = blocks_for(n, TILE)
    counts = backend.empty((256 * tiles,), UINT32)
    more = np.uint32(n), np.uint32(rows), np.int64(ignored)
    for shift in range(0, rows.bit_length(), 8):
        name = "unsigned" if keys.dtype == UINT32 else keys.dtype
        launch("indexing/segment_sum", typed("segment_count", name), tiles, BLOCK, keys, counts, *more, np.int32(shift))
        launch("indexing/segment_sum", "segment_scan", 1, 1024, counts, np.int32(256 * tiles))
        found = backend.empty((n,), UINT32), backend.empty((n,), UINT32)
        args = keys, places, counts, *found, *more, np.int32(shift)
        launch("indexing/segment_sum", typed("segment_sort", name), tiles, BLOCK, *args)
        keys, places = found
    starts = backend.empty((rows + 1,), UINT32)
    launch("indexing/segment_sum", "segment_starts", blocks_for(rows + 1, BLOCK), BLOCK, keys, starts, *more[:2])
    return Order(keys, places, starts, rows)


def last(index: Array, rows: int) -> Array:
    """Per key 1 + its last position in the flattened `index`, 0 if it does not occur: [rows] int32."""
    keys, found = as_keys(index), backends.backend_of(index).zeros((rows,), int32)
    args = keys, found, np.uint32(keys.size), np.uint32(rows)
    blocks = min(blocks_for(keys.size, BLOCK), BLOCKS)
    launch("indexing/segment_sum", typed("segment_last", keys.dtype), blocks, BLOCK, *args)
    return found


def sums(values: Array, index: Array, rows: int, dtype: DType, ignored: int = -1, outer: int = 1) -> Array:
    """Sum the rows of each key but `ignored`: values, read as [outer, n, width] -> [outer, rows, width] in `dtype`."""
    values, order, n = contiguous(values), ordered(index, rows, ignored), index.size
    width = values.size // (outer * n)
    backend, tiles = backends.backend_of(values), blocks_for(n, RUN)
    vectorize = np.bool_(width % 8 == 0 and values.data.ptr % 16 == 0)
    partial = backend.empty((outer * tiles * 2 * width,), float32)
    out = backend.empty((outer, order.rows, width), dtype)
    counts = np.uint32(n), np.uint32(order.rows)
    for first in range(0, outer, 65535):
        last = min(first + 65535, outer)
        tail = slice(first * tiles * 2 * width, None)
        args = values.reshape(-1)[first * n * width :], *order[:3], partial[tail], *counts, np.int64(width), vectorize
        launch("indexing/segment_sum", typed("segment_partials", values.dtype), (tiles, last - first), BLOCK, *args)
    final = values, order.places, order.starts, partial, out, *counts, np.uint32(outer), np.int64(width), vectorize
    entry = typed("segment_sums", values.dtype, dtype)
    launch("indexing/segment_sum", entry, blocks_for(outer * order.rows, BLOCK // 32), BLOCK, *final)
    return out

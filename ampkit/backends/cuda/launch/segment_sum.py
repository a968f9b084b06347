"""Sums of rows by key, on the device from beginning to end: nobody asks how many keys there are.

Keys are sorted by a radix sort that keeps the order of equal ones, and the rows of each key are added in that order in
float32. No atomic sums: the same bits every time. Which row of a key is the last needs no sort. Not yet run on a GPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import DType, float32, int32, int64

from ..nvrtc import MAX_ELEMENTS, STORED, blocks_for, launch, typed

Array = Any
TILE, RUN, BLOCK = 2048, 64, 256  # as in segment_sum.cu
BLOCKS = 4096
UINT32: DType = np.dtype(np.uint32)


class Order(NamedTuple):
    """Sorted keys [n], the place where each stood [n], where each key of [0, rows) begins [rows + 1]; all uint32."""

    keys: Array
    places: Array
    starts: Array
    rows: int


def fits(values: Array, index: Array, rows: int, dtype: DType) -> bool:
    """Whether `sums` takes rows of `values`, as many as `index` has elements, and answers in `dtype`."""
    known = values.dtype in STORED and dtype in (values.dtype, float32) and index.dtype.kind in "iu"
    return known and index.size > 0 and 0 < values.size <= MAX_ELEMENTS and 0 < rows < MAX_ELEMENTS


def as_keys(index: Array) -> Array:
    """`index` flat, in one of the dtypes that kernels read."""
    index = index if index.dtype in (int32, int64) else index.astype(int64)
    return side_by_side(index).reshape(-1)


def side_by_side(array: Array) -> Array:
    """`array`, copied if its elements do not lie in memory in their order."""
    return array if array.flags.c_contiguous else array.copy()


def ordered(index: Array, rows: int, ignored: int = -1) -> Order:
    """The order of `index`, integers; those outside [0, rows) and `ignored` come last, as `rows`."""
    there, keys, places, n = backends.backend_of(index), as_keys(index), None, index.size
    tiles = blocks_for(n, TILE)
    counts = there.empty((256 * tiles,), UINT32)
    more = np.uint32(n), np.uint32(rows), np.int64(ignored)
    for shift in range(0, rows.bit_length(), 8):
        name = "unsigned" if keys.dtype == UINT32 else keys.dtype
        launch("indexing/segment_sum", typed("segment_count", name), tiles, BLOCK, keys, counts, *more, np.int32(shift))
        launch("indexing/segment_sum", "segment_scan", 1, 1024, counts, np.int32(256 * tiles))
        found = there.empty((n,), UINT32), there.empty((n,), UINT32)
        given = keys, places, counts, *found, *more, np.int32(shift)
        launch("indexing/segment_sum", typed("segment_sort", name), tiles, BLOCK, *given)
        keys, places = found
    starts = there.empty((rows + 1,), UINT32)
    launch("indexing/segment_sum", "segment_starts", blocks_for(rows + 1, BLOCK), BLOCK, keys, starts, *more[:2])
    return Order(keys, places, starts, rows)


def last(index: Array, rows: int) -> Array:
    """Per key one more than the last place of `index`, flat, where it stands, or 0: [rows] int32."""
    keys, found = as_keys(index), backends.backend_of(index).zeros((rows,), int32)
    given = keys, found, np.uint32(keys.size), np.uint32(rows)
    launch(
        "indexing/segment_sum",
        typed("segment_last", keys.dtype),
        min(blocks_for(keys.size, BLOCK), BLOCKS),
        BLOCK,
        *given,
    )
    return found


def sums(values: Array, order: Order, dtype: DType, outer: int = 1) -> Array:
    """values [outer, n, width], whatever its axes are called -> [outer, rows, width], sums of the rows of each key."""
    values, n = side_by_side(values), order.keys.size
    width = values.size // (outer * n)
    there, tiles = backends.backend_of(values), blocks_for(n, RUN)
    packs = np.bool_(width % 8 == 0 and values.data.ptr % 16 == 0)
    partial = there.empty((outer * tiles * 2 * width,), float32)
    out = there.empty((outer, order.rows, width), dtype)
    many = np.uint32(n), np.uint32(order.rows)
    for first in range(0, outer, 65535):
        last = min(first + 65535, outer)
        some = slice(first * tiles * 2 * width, None)
        given = values.reshape(-1)[first * n * width :], *order[:3], partial[some], *many, np.int64(width), packs
        launch("indexing/segment_sum", typed("segment_partials", values.dtype), (tiles, last - first), BLOCK, *given)
    rest = values, order.places, order.starts, partial, out, *many, np.uint32(outer), np.int64(width), packs
    entry = typed("segment_sums", values.dtype, dtype)
    launch("indexing/segment_sum", entry, blocks_for(outer * order.rows, BLOCK // 32), BLOCK, *rest)
    return out

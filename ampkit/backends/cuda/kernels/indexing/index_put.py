"""Kernel of assignment by index: the last value for each place, by a table of places. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch import segment_sum
from ampkit.backends.cuda.launch.row_copy import rows_of, whole
from ampkit.backends.cuda.nvrtc import MOST
from ampkit.base.dtypes import int32
from ampkit.ops.indexing.index_put import last_of_each

Array = Any


def _fits(rows: Array, keys: Array, cells: int) -> bool:
    return 0 < rows.size <= MOST and 0 < cells < MOST


@last_of_each.on("cuda", when=_fits)
def last_of_each_cuda(rows: Array, keys: Array, cells: int) -> Array:
    rows, (outer, n, _) = segment_sum.side_by_side(rows), rows.shape
    if not whole(rows, keys, n):
        return last_of_each.reference.run(rows, keys, cells)
    last = rows_of(segment_sum.last(keys, cells), keys, cells).reshape(-1)
    return rows_of(rows, last - int32.type(1), n, outer)

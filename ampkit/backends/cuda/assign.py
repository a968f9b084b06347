"""Body of assignment by index: for each value the last one for its place, by a sort. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

from ...core.dtypes import int64
from ...ops.assign import last_of_each
from . import segments
from .kernel import MOST
from .lookup import rows_of, whole

Array = Any


def _fits(rows: Array, keys: Array, cells: int) -> bool:
    return 0 < rows.size <= MOST and 0 < cells < MOST


@last_of_each.on("cuda", when=_fits)
def last_of_each_cuda(rows: Array, keys: Array, cells: int) -> Array:
    rows, (outer, n, _) = segments.side_by_side(rows), rows.shape
    if not whole(rows, keys, n):
        return last_of_each.reference.run(rows, keys, cells)
    order = segments.ordered(keys, cells)
    ends = rows_of(order.starts, keys + 1, cells + 1).reshape(-1).astype(int64)
    last = rows_of(order.places, ends - 1, n).reshape(-1).astype(int64)
    return rows_of(rows, last, n, outer)

"""CPU kernel of add_at, the gradient of x[index] (gather_scatter.cpp)."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, broadcast_to, reshape_view, supported
from ampkit.base.dtypes import DType
from ampkit.base.errors import UnsupportedError
from ampkit.ops.indexing.deterministic_scatter import add_at

from .gather_scatter import summed_rows


class RowIndex(NamedTuple):
    """An index as one of rows: an array of `shape` is [before, rows, behind], and keys [n] name rows."""

    keys: HostArray
    sizes: tuple[int, int, int]
    result: tuple[int, ...]  # the shape of array[index]


def row_index(index: Any, shape: tuple[int, ...]) -> RowIndex:
    """`index` as a RowIndex, where it is integer arrays for axes side by side, and else full slices.

    Raises UnsupportedError for another.
    """
    parts = index if type(index) is tuple else (index,)
    at = [i for i, part in enumerate(parts) if hasattr(part, "dtype")]
    arrays = [parts[i] for i in at]
    full = all(type(part) is slice and part == slice(None) for i, part in enumerate(parts) if i not in at)
    if (
        len(parts) > len(shape)
        or not at
        or not full
        or at[-1] - at[0] >= len(at)
        or any(a.dtype.kind not in "iu" for a in arrays)
    ):
        raise UnsupportedError
    lengths = shape[at[0] : at[-1] + 1]
    named = arrays[0].shape if len(arrays) == 1 else np.broadcast_shapes(*[a.shape for a in arrays])
    keys: Any = None
    for array, n in zip(arrays, lengths, strict=True):
        lowest = int(array.min(initial=0))
        if array.size and not (-n <= lowest and int(array.max()) < n):
            raise UnsupportedError  # the reference raises the error
        wide = array.astype(np.int64, copy=False)
        rows = wide if lowest >= 0 else wide % n
        keys = rows if keys is None else keys * n + rows
    before, behind = shape[: at[0]], shape[at[-1] + 1 :]
    sizes = prod(before), prod(lengths), prod(behind)
    return RowIndex(broadcast_to(keys, named).reshape(-1), sizes, (*before, *named, *behind))


def rows_added(values: HostArray, index: Any, shape: tuple[int, ...], dtype: DType) -> HostArray:
    """Zeros of `shape` with `values` added at [index]."""
    found = row_index(index, shape)
    if found.result != values.shape:
        raise UnsupportedError
    rows = reshape_view(values, (found.sizes[0], len(found.keys), found.sizes[2]))
    return summed_rows(rows, found.keys, found.sizes[1], dtype).reshape(shape)


@add_at.on("cpu", when=lambda values, index, shape: supported(values) and values.size > 0, min_elements=MIN_ELEMENTS)
def add_at_cpu(values: HostArray, index: Any, shape: tuple[int, ...]) -> Any:
    return rows_added(values, index, shape, values.dtype)

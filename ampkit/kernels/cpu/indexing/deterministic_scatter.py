"""CPU kernel of add_at, the gradient of x[index] (gather_scatter.cpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, reshape_view, supported
from ampkit.base.dtypes import DType
from ampkit.base.errors import UnsupportedError
from ampkit.kernels.shared.indexing import row_index
from ampkit.ops.indexing.deterministic_scatter import add_at

from .gather_scatter import summed_rows


def flat_keys(arrays: list[HostArray], lengths: tuple[int, ...]) -> HostArray:
    """The flat indices, int64, into axes of these lengths. Raises UnsupportedError for an index out of range."""
    keys: Any = None
    for array, n in zip(arrays, lengths, strict=True):
        lowest = int(array.min(initial=0))
        if array.size and not (-n <= lowest and int(array.max()) < n):
            raise UnsupportedError  # the reference raises the error
        wide = array.astype(np.int64, copy=False)
        rows = wide if lowest >= 0 else wide % n
        keys = rows if keys is None else keys * n + rows
    return keys


def rows_added(values: HostArray, index: Any, shape: tuple[int, ...], dtype: DType) -> HostArray:
    """Zeros of `shape` with `values` added at [index]."""
    found = row_index(index, shape, flat_keys)
    if found.result != values.shape:
        raise UnsupportedError
    rows = reshape_view(values, (found.sizes[0], len(found.keys), found.sizes[2]))
    return summed_rows(rows, found.keys, found.sizes[1], dtype).reshape(shape)


@add_at.on("cpu", when=lambda values, index, shape: supported(values) and values.size > 0, min_elements=MIN_ELEMENTS)
def add_at_cpu(values: HostArray, index: Any, shape: tuple[int, ...]) -> Any:
    return rows_added(values, index, shape, values.dtype)

"""CPU kernel of add_at, the gradient of x[index] (gather_scatter.cpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, reshape_view, supported
from ampkit.base.dtypes import DType
from ampkit.base.errors import UnsupportedError
from ampkit.kernels.shared.indexing import register_add_at

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


def _summed(values: HostArray, keys: HostArray, sizes: tuple[int, int, int], dtype: DType) -> HostArray:
    return summed_rows(reshape_view(values, (sizes[0], len(keys), sizes[2])), keys, sizes[1], dtype)


def _fits(values: HostArray, index: Any, shape: tuple[int, ...]) -> bool:
    return supported(values) and values.size > 0


rows_added = register_add_at("cpu", flat_keys, _summed, _fits, MIN_ELEMENTS)

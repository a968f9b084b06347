"""CUDA kernels of add_at (the gradient of advanced indexing) and last_per_key, deterministic.

CuPy's scatter-add uses atomics, whose order differs from run to run; these sum in a fixed order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cuda.array_layout import contiguous
from ampkit.backends.cuda.launch import segment_sum
from ampkit.backends.cuda.launch.row_copy import can_gather_rows, gather_rows
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED
from ampkit.base.dtypes import Array, DType, int32, int64
from ampkit.base.errors import UnsupportedError
from ampkit.kernels.shared.indexing import register_add_at
from ampkit.ops.indexing.deterministic_scatter import last_per_key


def _flat_keys(arrays: list[Array], lengths: tuple[int, ...]) -> Array:
    keys: Any = 0
    for array, n in zip(arrays, lengths, strict=True):
        array = array.astype(int64)
        keys = keys * n + np.where(array < 0, array + n, array)
    return keys


def _without_ellipsis(index: Any, ndim: int) -> tuple[Any, ...]:
    parts = index if type(index) is tuple else (index,)
    full = (slice(None),) * (ndim - len(parts) + 1)
    return tuple([each for part in parts for each in (full if part is ... else (part,))])


def _summed(values: Array, keys: Array, sizes: tuple[int, int, int], dtype: DType) -> Array:
    if not segment_sum.fits(values, keys, sizes[1], dtype):
        raise UnsupportedError
    return segment_sum.sums(values, keys, sizes[1], dtype, outer=sizes[0])


def _is_stored(values: Array, index: Any, shape: tuple[int, ...]) -> bool:
    return values.dtype in STORED and values.size > 0


register_add_at("cuda", _flat_keys, _summed, _is_stored, plain=_without_ellipsis)


def _fits(rows: Array, keys: Array, cells: int) -> bool:
    return 0 < rows.size <= MAX_ELEMENTS and 0 < cells < MAX_ELEMENTS


@last_per_key.on("cuda", when=_fits)
def last_per_key_cuda(rows: Array, keys: Array, cells: int) -> Array:
    rows = contiguous(rows)
    if not can_gather_rows(rows, keys, rows.shape[1]):
        raise UnsupportedError
    last = gather_rows(segment_sum.last(keys, cells).reshape(1, -1, 1), keys).reshape(-1)
    return gather_rows(rows, last - int32.type(1))

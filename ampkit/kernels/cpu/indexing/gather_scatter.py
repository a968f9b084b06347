"""CPU kernels of gather, scatter and scatter_add along an axis (gather_scatter.cpp).

`gathered`, `scattered`, `scatter_added`, `taken_rows` and `summed_rows` serve the kernels of sorting and of other
indexing too. They raise UnsupportedError for arrays whose axes cannot be merged to three.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import (
    KINDS,
    MIN_FUSED,
    Function,
    HostArray,
    aligned,
    available,
    broadcast_to,
    empty,
    int64_keys,
    reshape_view,
    supported,
)
from ampkit.base.dtypes import DType, float32
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.indexing import AlongAxis, register_gather_scatter
from ampkit.ops.argument_checks import check_index_range

_gather, _scatter, _scatter_add = (Function(n, "aaaii", ctypes.c_int64) for n in ("gather", "scatter", "scatter_add"))
_scatter_add_rows = Function("scatter_add_rows", "aaaa", ctypes.c_int64)
_take_rows, _sum_rows = Function("take_rows", "aap"), Function("sum_rows", "aappii")
_sum_short_rows = Function("sum_short_rows", "aap")
_SHORT = 16  # elements: sum_short_rows takes rows of at most as many


def _along(run: Function, x: HostArray, other: HostArray | None, index: HostArray, dim: int) -> HostArray:
    """Call run(x, other, index, step, length) with views [a, n, c] of arrays of index' shape, `dim` in the middle.

    x is longer along `dim`, and no shorter on other axes; its view is [a, 1, c], of the first elements along `dim`.
    other: None for gather's result, which is made here. Raises RangeError for an index outside of x, for the op of the
    kernel's name.
    """
    at = dim % index.ndim
    shape = prod(index.shape[:at]), index.shape[at], prod(index.shape[at + 1 :])
    made = empty(index.shape, x.dtype) if other is None else other
    lead = tuple([slice(1 if i == at else n) for i, n in enumerate(index.shape)])
    first = reshape_view(x[lead], (shape[0], 1, shape[2]))
    arrays = made, int64_keys(index)
    values, where = [reshape_view(broadcast_to(a, index.shape), shape) for a in arrays]
    step = x.strides[at] // x.itemsize
    if run(*((values, first) if other is None else (first, values)), where, step, x.shape[at]):
        check_index_range(run.name, index, x.shape[at])
    return made


def gathered(x: HostArray, index: HostArray, dim: int) -> HostArray:
    """The elements of x at `index` along `dim`, in the shape of index."""
    return _along(_gather, x, None, index, dim)


def scattered(x: HostArray, values: HostArray | None, index: HostArray, dim: int) -> HostArray:
    """A copy of x with `values`, broadcast to `index`, or zeros, written at it; of several for one element the last."""
    out = empty(x.shape, x.dtype)
    copy(out, x)
    values = np.zeros((), x.dtype) if values is None else values if values.flags.aligned else aligned(values)
    _along(_scatter, out, values, index, dim)
    return out


def scatter_added(
    values: HostArray, index: HostArray, dim: int, shape: tuple[int, ...], dtype: DType, start: HostArray | None = None
) -> HostArray:
    """Zeros of `shape`, or `start`, plus `values` added in float32 at `index` along `dim`."""
    if dim % index.ndim == index.ndim - 1 and shape[:-1] == index.shape[:-1]:
        with suppress(UnsupportedError):  # of arrays with gaps
            return _added_in_rows(values, index, shape, dtype, start)
    total = empty(shape, float32)
    if start is None:
        total.fill(0)
    else:
        copy(total, start)
    _along(_scatter_add, total, values, index, dim)
    return in_format(total, dtype)


def _added_in_rows(
    values: HostArray, index: HostArray, shape: tuple[int, ...], dtype: DType, start: HostArray | None
) -> HostArray:
    """`scatter_added` along the last axis: each row is added up in memory of its own, and written once."""
    out, rows = empty(shape, dtype), prod(shape[:-1])
    arrays = start, broadcast_to(values, index.shape), int64_keys(index)
    views = [None if a is None else reshape_view(a, (rows, a.shape[-1])) for a in arrays]
    if _scatter_add_rows(reshape_view(out, (rows, shape[-1])), *views):
        check_index_range("scatter_add", index, shape[-1])
    return out


def taken_rows(x: HostArray, keys: HostArray) -> HostArray:
    """The n rows `keys` of x [a, rows, c]: [a, n, c]. Raises UnsupportedError for rows that are short, or have gaps."""
    if x.shape[2] * x.itemsize < 2 * _SHORT or x.strides[2] != x.itemsize or not x.flags.aligned or not available():
        raise UnsupportedError
    out = empty((x.shape[0], keys.size, x.shape[2]), x.dtype)
    keys = np.ascontiguousarray(int64_keys(keys))
    _take_rows(out, x, address(keys))
    return out


def summed_rows(
    values: HostArray,
    keys: HostArray,
    rows: int,
    dtype: DType,
    skipped: int = -1,
    sources: HostArray | None = None,
) -> HostArray:
    """The sums [a, rows, c] of the rows of values [a, n, c] for each of the rows that the n keys name, except one.

    sources: which row of values each key stands for, int64; None where that is its own place.
    """
    out = empty((values.shape[0], rows, values.shape[2]), dtype)
    keys = np.ascontiguousarray(int64_keys(keys))
    if values.shape[2] < _SHORT and skipped < 0 and sources is None:
        _sum_short_rows(out, values, address(keys))
    else:
        _sum_rows(out, values, address(keys), None if sources is None else address(sources), keys.size, skipped)
    return out


def _fits(x: HostArray, dim: int, index: HostArray, *src: Any) -> bool:
    known = available() and 0 < index.ndim == x.ndim and index.size >= MIN_FUSED and x.size > 0
    return known and x.dtype in KINDS and x.flags.aligned


def _sums_fit(dy: HostArray, saved: Saved, needs: Any, dim: int) -> bool:
    return supported(dy) and len(saved.shape) > 0 and dy.size >= MIN_FUSED


register_gather_scatter(
    AlongAxis("cpu", gathered, scattered, scatter_added, in_format, _fits, supported, _sums_fit, checks=True)
)

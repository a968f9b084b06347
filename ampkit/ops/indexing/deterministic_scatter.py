"""Scatter primitives whose result does not depend on the order of threads: add, reduce and assign at indices."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator
from ampkit.core.dispatch import primitive


def assign_last_wins(out: Any, index: Any, values: Any) -> None:
    """out[index] = values, in place; of several values for one element the last wins.

    values: an array that broadcasts to out[index], or a number. NumPy writes in order. CuPy's threads do not, so there
    duplicates are replaced by the last value first.
    """
    if type(out) is not np.ndarray and type(values) is type(out) and values.size > 1:
        index = index_on_device_of(out, index)
        values = _resolve_duplicates(out, index if type(index) is tuple else (index,), values)
    out[index] = values


def _resolve_duplicates(out: Any, index: tuple[Any, ...], values: Any) -> Any:
    """Return `values` with those of a repeated index replaced by the last one for it."""
    parts = _expand_index(index, out.ndim)
    arrays = {axis: part for axis, part in enumerate(parts) if hasattr(part, "dtype")}
    if not arrays or not all(part.dtype.kind in "iu" for part in arrays.values()):  # a mask selects no element twice
        return values
    named, at = np.broadcast_shapes(*[part.shape for part in arrays.values()]), min(arrays)
    if max(arrays) - at >= len(arrays):  # a slice separates the arrays, and NumPy puts the indexed axes first
        at = 0
    sizes = [len(range(n)[part]) for part, n in zip(parts, out.shape, strict=True) if type(part) is slice]
    shape = (*sizes[:at], *named, *sizes[at:])
    count = prod(named)
    if count < 2 or not prod(shape) or not out.size:
        return values
    keys, cells = _flat_keys([(part, out.shape[axis]) for axis, part in arrays.items()], named)
    rows = _broadcast_values(values, shape).reshape(prod(sizes[:at]), count, prod(sizes[at:]))
    return last_per_key(rows, keys, cells).reshape(shape)


def _expand_index(index: tuple[Any, ...], ndim: int) -> list[Any]:
    # One item per axis: a mask is repeated for each axis that it covers, an ellipsis becomes full slices.
    parts: list[Any] = []
    left = ndim - sum(getattr(p, "ndim", 1) if _is_mask(p) else 1 for p in index if p is not ...)
    for part in index:
        parts += [slice(None)] * left if part is ... else [part] * (part.ndim if _is_mask(part) else 1)
    return parts + [slice(None)] * (ndim - len(parts))


def _is_mask(part: Any) -> bool:
    return getattr(part, "dtype", None) == np.bool_


def _flat_keys(arrays: list[tuple[Any, int]], named: tuple[int, ...]) -> tuple[Any, int]:
    """Return the flat index [n] into the indexed axes, and the number of their elements."""
    keys, cells = 0, 1
    for part, n in reversed(arrays):
        keys, cells = keys + part.astype(np.int64) % n * cells, cells * n
    return np.broadcast_to(keys, named).reshape(-1), cells


@primitive("indexing.deterministic_scatter")
def last_per_key(rows: Any, keys: Any, cells: int) -> Any:
    """rows [outer, n, width], each replaced by the last of its key; keys [n] in [0, cells)."""
    order = np.argsort(keys, kind="stable")
    return np.take(rows, order[np.searchsorted(keys[order], keys, "right") - 1], 1)


def _broadcast_values(values: Any, shape: tuple[int, ...]) -> Any:
    extra = max(0, values.ndim - len(shape))
    if values.shape[:extra] == (1,) * extra:  # as assignment allows
        values = values.reshape(values.shape[extra:])
    return np.broadcast_to(values, shape)


def index_on_device_of(values: Any, index: Any) -> Any:
    """Return `index` with its arrays on the device of `values`; those built from lists are on the host."""
    there = backends.backend_of(values)
    if there.name == "cpu":
        return index
    if type(index) is tuple:
        return tuple([index_on_device_of(values, part) for part in index])
    return there.constant(index) if isinstance(index, np.ndarray) else index


@primitive("indexing.deterministic_scatter")
def add_at(values: Any, index: Any, shape: tuple[int, ...]) -> Any:
    """Zeros with values added at [index]."""
    if type(values) is not np.ndarray:  # CuPy's add.at supports few dtypes and adds in any order
        wide = values.astype(accumulator(values.dtype))
        return segment_reduce(np.add, wide, index, shape, 0).astype(values.dtype)
    out = np.zeros(shape, values.dtype, like=values)
    np.add.at(out, index, values)
    return out


def segment_reduce(ufunc: Any, values: Any, at: Any, shape: tuple[int, ...], empty: Any) -> Any:
    """Reduce, with `ufunc`, the values of each index; `empty` where an index has none.

    values broadcast to the shape of [at] in an array of `shape` -> `shape`. A stable sort and log n combining steps,
    without atomics: the same order of operations on every device.
    """
    cells = np.arange(int(np.prod(shape, dtype=np.int64)), like=values)
    keys = cells.reshape(shape)[at]
    values, keys = np.broadcast_to(values, keys.shape).reshape(-1), keys.reshape(-1)
    if not keys.size:
        return np.full_like(cells, empty, values.dtype).reshape(shape)
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], scan_by_key(ufunc, values[order], keys[order])
    last = np.maximum(np.searchsorted(keys, cells, "right") - 1, 0)
    return np.where(keys[last] == cells, values[last], values.dtype.type(empty)).reshape(shape)


def scan_by_key(ufunc: Any, values: Any, keys: Any) -> Any:
    """The inclusive scan, with `ufunc`, of the values [n] under equal keys, which are sorted: log n doubling steps."""
    step = 1
    while step < keys.size:
        same = keys[step:] == keys[:-step]
        joined = np.where(same, ufunc(values[step:], values[:-step]), values[step:])
        values, step = np.concatenate([values[:step], joined]), 2 * step
    return values

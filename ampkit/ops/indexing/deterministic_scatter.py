"""Scatter primitives whose result does not depend on the order of threads: add, reduce and assign at indices."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator
from ampkit.core.dispatch import Primitive

__all__: list[str] = []


def assign_last_wins(out: Any, index: Any, values: Any) -> None:
    """out[index] = values, in place: values [of what index names] or what broadcasts to it, or a number.

    NumPy writes in order. CuPy's threads come in any, so there each place is first given its last value.
    """
    if type(out) is not np.ndarray and type(values) is type(out) and values.size > 1:
        index = index_on_device_of(out, index)
        values = _resolve_duplicates(out, index if type(index) is tuple else (index,), values)
    out[index] = values


def _resolve_duplicates(out: Any, index: tuple[Any, ...], values: Any) -> Any:
    """`values`, those for a place that is named again replaced by what comes last for it."""
    parts = _expand_index(index, out.ndim)
    arrays = {axis: part for axis, part in enumerate(parts) if hasattr(part, "dtype")}
    if not arrays or not all(part.dtype.kind in "iu" for part in arrays.values()):  # a mask names nothing twice
        return values
    named, at = np.broadcast_shapes(*[part.shape for part in arrays.values()]), min(arrays)
    if max(arrays) - at >= len(arrays):  # a slice stands between, and NumPy puts their axes first
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
    # One part for each axis: a mask counts for those that it covers, an ellipsis for those that are left.
    parts: list[Any] = []
    left = ndim - sum(getattr(p, "ndim", 1) if _is_mask(p) else 1 for p in index if p is not ...)
    for part in index:
        parts += [slice(None)] * left if part is ... else [part] * (part.ndim if _is_mask(part) else 1)
    return parts + [slice(None)] * (ndim - len(parts))


def _is_mask(part: Any) -> bool:
    return getattr(part, "dtype", None) == np.bool_


def _flat_keys(arrays: list[tuple[Any, int]], named: tuple[int, ...]) -> tuple[Any, int]:
    """The places that index arrays name [n], in row-major order of the indexed axes, and how many there are."""
    keys, cells = 0, 1
    for part, n in reversed(arrays):
        keys, cells = keys + part.astype(np.int64) % n * cells, cells * n
    return np.broadcast_to(keys, named).reshape(-1), cells


def _last_per_key(rows: Any, keys: Any, cells: int) -> Any:
    order = np.argsort(keys, kind="stable")
    return np.take(rows, order[np.searchsorted(keys[order], keys, "right") - 1], 1)


# (rows [outer, n, width], keys [n] from 0 to cells - 1, cells): for each row the last one of its key.
last_per_key = Primitive("last_per_key", "indexing.deterministic_scatter", _last_per_key)


def _broadcast_values(values: Any, shape: tuple[int, ...]) -> Any:
    extra = max(0, values.ndim - len(shape))
    if values.shape[:extra] == (1,) * extra:  # which an assignment lets pass
        values = values.reshape(values.shape[extra:])
    return np.broadcast_to(values, shape)


def index_on_device_of(values: Any, index: Any) -> Any:
    """An index whose arrays are where `values` is: lists, and places that were worked out here, are the host's."""
    there = backends.backend_of(values)
    if there.name == "cpu":
        return index
    if type(index) is tuple:
        return tuple([index_on_device_of(values, part) for part in index])
    return there.constant(index) if isinstance(index, np.ndarray) else index


def _add_at(values: Any, index: Any, shape: tuple[int, ...]) -> Any:
    if type(values) is not np.ndarray:  # CuPy adds at the places of one array alone, in any order, in few dtypes
        wide = values.astype(accumulator(values.dtype))
        return segment_reduce(np.add, wide, index, shape, 0).astype(values.dtype)
    out = np.zeros(shape, values.dtype, like=values)
    np.add.at(out, index, values)
    return out


def segment_reduce(meet: Any, values: Any, at: Any, shape: tuple[int, ...], nothing: Any) -> Any:
    """What `meet` makes of the values of each place, `nothing` where there is none. In log n steps, without atomics."""
    cells = np.arange(int(np.prod(shape, dtype=np.int64)), like=values)
    keys = cells.reshape(shape)[at]
    values, keys = np.broadcast_to(values, keys.shape).reshape(-1), keys.reshape(-1)
    if not keys.size:
        return np.full_like(cells, nothing, values.dtype).reshape(shape)
    order = np.argsort(keys, kind="stable")
    keys, values, step = keys[order], values[order], 1
    while step < keys.size:  # each value takes in those before it of the same key, twice as many each time
        same = keys[step:] == keys[:-step]
        joined = np.where(same, meet(values[step:], values[:-step]), values[step:])
        values, step = np.concatenate([values[:step], joined]), 2 * step
    last = np.maximum(np.searchsorted(keys, cells, "right") - 1, 0)
    return np.where(keys[last] == cells, values[last], values.dtype.type(nothing)).reshape(shape)


# (values, index, shape): zeros with values added at [index]
add_at = Primitive("add_at", "indexing.deterministic_scatter", _add_at)

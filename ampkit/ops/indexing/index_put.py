"""Values written to the places that an index names; of several for one place the last stays, on every device."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ampkit.core.dispatch import Primitive

from .subscript import beside

__all__: list[str] = []


def assign(out: Any, index: Any, values: Any) -> None:
    """out[index] = values, in place: values [of what index names] or what broadcasts to it, or a number.

    NumPy writes in order. CuPy's threads come in any, so there each place is first given its last value.
    """
    if type(out) is not np.ndarray and type(values) is type(out) and values.size > 1:
        index = beside(out, index)
        values = _settled(out, index if type(index) is tuple else (index,), values)
    out[index] = values


def _settled(out: Any, index: tuple[Any, ...], values: Any) -> Any:
    """`values`, those for a place that is named again replaced by what comes last for it."""
    parts = _written_out(index, out.ndim)
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
    keys, cells = _keys([(part, out.shape[axis]) for axis, part in arrays.items()], named)
    rows = _as_wide_as(values, shape).reshape(prod(sizes[:at]), count, prod(sizes[at:]))
    return last_of_each(rows, keys, cells).reshape(shape)


def _written_out(index: tuple[Any, ...], ndim: int) -> list[Any]:
    # One part for each axis: a mask counts for those that it covers, an ellipsis for those that are left.
    parts: list[Any] = []
    left = ndim - sum(getattr(p, "ndim", 1) if _is_mask(p) else 1 for p in index if p is not ...)
    for part in index:
        parts += [slice(None)] * left if part is ... else [part] * (part.ndim if _is_mask(part) else 1)
    return parts + [slice(None)] * (ndim - len(parts))


def _is_mask(part: Any) -> bool:
    return getattr(part, "dtype", None) == np.bool_


def _keys(arrays: list[tuple[Any, int]], named: tuple[int, ...]) -> tuple[Any, int]:
    """The places that index arrays name [n], in row-major order of the indexed axes, and how many there are."""
    keys, cells = 0, 1
    for part, n in reversed(arrays):
        keys, cells = keys + part.astype(np.int64) % n * cells, cells * n
    return np.broadcast_to(keys, named).reshape(-1), cells


def _last_of_each(rows: Any, keys: Any, cells: int) -> Any:
    order = np.argsort(keys, kind="stable")
    return np.take(rows, order[np.searchsorted(keys[order], keys, "right") - 1], 1)


# (rows [outer, n, width], keys [n] from 0 to cells - 1, cells): for each row the last one of its key.
last_of_each = Primitive("last_of_each", "indexing.index_put", _last_of_each)


def _as_wide_as(values: Any, shape: tuple[int, ...]) -> Any:
    extra = max(0, values.ndim - len(shape))
    if values.shape[:extra] == (1,) * extra:  # which an assignment lets pass
        values = values.reshape(values.shape[extra:])
    return np.broadcast_to(values, shape)

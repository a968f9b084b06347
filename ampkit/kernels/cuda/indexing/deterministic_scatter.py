"""CUDA kernels of add_at (the gradient of advanced indexing) and last_per_key, deterministic.

CuPy's scatter-add uses atomics, whose order differs from run to run; these sum in a fixed order.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.cuda.array_layout import contiguous
from ampkit.backends.cuda.launch import segment_sum
from ampkit.backends.cuda.launch.row_copy import can_gather_rows, gather_rows
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED
from ampkit.base.dtypes import Array, int32, int64
from ampkit.base.errors import UnsupportedError
from ampkit.ops.indexing.deterministic_scatter import add_at, last_per_key


class IndexArrays(NamedTuple):
    """Integer index arrays of adjacent axes, and the axes before, indexed by, and after them."""

    arrays: tuple[Array, ...]
    before: tuple[int, ...]
    indexed: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the indexed result."""
        return (*self.before, *np.broadcast_shapes(*[a.shape for a in self.arrays]), *self.after)

    def keys(self) -> Array:
        """Flat indices into the indexed axes, row-major; negative indices count from the end."""
        flat, step = 0, 1
        for array, n in zip(reversed(self.arrays), reversed(self.indexed), strict=True):
            array = array.astype(int64)
            flat = flat + np.where(array < 0, array + n, array) * step
            step *= n
        return flat


def _parse_index(index: Any, shape: tuple[int, ...]) -> IndexArrays | None:
    """Parse `index` into an array of `shape`; None for other forms, and for masks, whose result size is unknown."""
    parts = list(index) if type(index) is tuple else [index]
    if any(part is ... for part in parts):
        at = next(i for i, part in enumerate(parts) if part is ...)
        parts[at : at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    kinds = ["a" if getattr(getattr(p, "dtype", None), "kind", "") in ("i", "u") else ":" for p in parts]
    pattern = "".join(kinds).rstrip(":")
    first = pattern.find("a")
    rest = [p for p, kind in zip(parts, kinds, strict=True) if kind == ":"]
    if first < 0 or ":" in pattern[first:] or not all(type(p) is slice and p == slice(None) for p in rest):
        return None
    end = len(pattern)
    return IndexArrays(tuple(parts[first:end]), shape[:first], shape[first:end], shape[end:])


@add_at.on("cuda", when=lambda values, index, shape: values.dtype in STORED and values.size > 0)
def add_at_cuda(values: Array, index: Any, shape: tuple[int, ...]) -> Array:
    indexed = _parse_index(index, shape)
    if indexed is None or indexed.shape != values.shape:
        raise UnsupportedError
    keys, rows = indexed.keys(), prod(indexed.indexed)
    if not segment_sum.fits(values, keys, rows, values.dtype):
        raise UnsupportedError
    outer = prod(indexed.before)
    return segment_sum.sums(values, segment_sum.ordered(keys, rows), values.dtype, outer).reshape(shape)


def _fits(rows: Array, keys: Array, cells: int) -> bool:
    return 0 < rows.size <= MAX_ELEMENTS and 0 < cells < MAX_ELEMENTS


@last_per_key.on("cuda", when=_fits)
def last_per_key_cuda(rows: Array, keys: Array, cells: int) -> Array:
    rows, (outer, n, _) = contiguous(rows), rows.shape
    if not can_gather_rows(rows, keys, n):
        raise UnsupportedError
    last = gather_rows(segment_sum.last(keys, cells), keys, cells).reshape(-1)
    return gather_rows(rows, last - int32.type(1), n, outer)

"""Reductions over any axes of arrays that are contiguous in some order of axes.

Axes are merged in memory order; each run of adjacent reduced axes is a reduction [outer, n, inner] -> [outer, inner].
Long rows and columns are reduced in parts, then the parts; intermediate results are float32.
"""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array, DType, bool_, float32
from ampkit.base.errors import UnsupportedError

from ..nvrtc import MAX_ELEMENTS, STORED, blocks_for, launch, typed

BLOCK = 256
PART = 1 << 14  # elements of a row that a block reduces
BLOCKS = 1024  # enough to occupy a large GPU
SHORT, LONG = 64, 2048  # minimum and maximum of elements of a column that a block reduces
THEN = {  # the term that joins partial results, where it is another; AddSquares joins the roots of parts
    **dict.fromkeys(("AddAbs", "AddExps", "CountEqual", "CountNonzero", "CountZero"), "Add"),
    "MaxAbs": "Maximum",
    "MinAbs": "Minimum",
}


class Finish(NamedTuple):
    """What the last launch applies to the result: division by `divisor`, then the square root if `root`."""

    divisor: float = 1.0
    root: bool = False


class ColumnCall(NamedTuple):
    """A launch of reduce_columns (see reductions.cu): sizes [outer, n, inner] -> [outer, parts, inner], of `dtype`.

    blocks: for each part. depth: threads that share a part of a column, or of 8 columns if vectorized.
    """

    term: str
    sizes: tuple[int, int, int]
    part: int
    parts: int
    dtype: DType
    finish: Finish
    blocks: int
    vectorized: bool
    depth: int

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Sizes, divisor and root as arguments of the kernel."""
        sizes = *map(np.int64, self.sizes), np.int64(self.part), np.int64(self.parts)
        return *sizes, np.float32(self.finish.divisor), np.bool_(self.finish.root)


class AxisRun(NamedTuple):
    """Axes adjacent in memory that are all reduced or all not; size: the product of their lengths."""

    reduced: bool
    axes: tuple[int, ...]
    size: int


def axes_of(dim: Any, ndim: int) -> tuple[int, ...]:
    """The axes of `dim`, an axis or several, already checked; None and () mean all."""
    if dim is None or dim == () or dim == [] or not ndim:
        return tuple(range(ndim))
    return tuple([d % ndim for d in (dim if isinstance(dim, (tuple, list)) else (dim,))])


def memory_order(array: Array) -> tuple[int, ...] | None:
    """The axes longer than 1 in memory order, outermost first; None if no order of axes makes the array contiguous."""
    order = sorted((i for i, n in enumerate(array.shape) if n > 1), key=lambda i: -array.strides[i])
    step = array.dtype.itemsize
    for i in reversed(order):
        if array.strides[i] != step:
            return None
        step *= array.shape[i]
    return tuple(order)


def reduced(
    term: str,
    x: Array,
    dim: Any,
    keepdim: bool,
    dtype: DType,
    finish: Finish = Finish(),  # noqa: B008
    center: Array | None = None,
) -> Array:
    """Reduce x over `dim` in float32, rounded to `dtype`: float32 or x's dtype; for "Add" of float32 any of STORED.

    term: one of kernels/shared/reductions.h; the counts take bool too. center: which the term has, float32, of
    the result's shape with the reduced axes; for a single run of axes. Raises UnsupportedError where x is not
    contiguous in any order of axes, is empty, or has a dtype without a kernel, and for a center in another order.
    """
    out_dtypes = STORED if term == "Add" and x.dtype == float32 else (x.dtype, float32)
    read = STORED | {bool_} if term in ("CountNonzero", "CountZero") else STORED
    order = memory_order(x) if x.dtype in read and dtype in out_dtypes and 0 < x.size <= MAX_ELEMENTS else None
    dims = axes_of(dim, x.ndim)
    if order is None or not any(i in dims for i in order):
        raise UnsupportedError
    runs = _runs(order, dims, x.shape)
    if center is not None and (sum(run.reduced for run in runs) > 1 or not _is_in_order(center, order, dims)):
        raise UnsupportedError
    return _as_output(_over_runs(term, x, runs, dtype, finish, center), x.shape, order, dims, keepdim)


def _is_in_order(center: Array, order: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    """Whether the values of `center`, which has the reduced axes, lie in memory as the results will."""
    return center.dtype == float32 and memory_order(center) == tuple([i for i in order if i not in dims])


def _runs(order: tuple[int, ...], dims: tuple[int, ...], shape: tuple[int, ...]) -> list[AxisRun]:
    """Merge the axes `order` into runs that are reduced (in `dims`) or not."""
    groups = [(is_reduced, tuple(axes)) for is_reduced, axes in groupby(order, lambda i: i in dims)]
    return [AxisRun(is_reduced, axes, prod(shape[i] for i in axes)) for is_reduced, axes in groups]


def _over_runs(term: str, x: Array, runs: list[AxisRun], dtype: DType, finish: Finish, center: Array | None) -> Array:
    """Reduce one run after the other, innermost first: that leaves the fewest elements for the others."""
    remaining = [i for i, run in enumerate(runs) if run.reduced]
    while remaining:
        i = remaining.pop()
        sizes = prod(r.size for r in runs[:i]), runs[i].size, prod(r.size for r in runs[i + 1 :])
        x = _reduce_n(term, x, sizes, *((float32, _of_part(term)) if remaining else (dtype, finish)), center)
        runs, term = runs[:i] + runs[i + 1 :], THEN.get(term, term)
    return x


def _of_part(term: str) -> Finish:
    return Finish(root=term == "AddSquares")


def _reduce_n(term: str, x: Array, sizes: tuple[int, int, int], dtype: DType, finish: Finish, center: Any) -> Array:
    """Reduce [outer, n, inner] over n -> [outer, inner], flat, in as many launches as the parts need."""
    outer, n, inner = sizes
    if inner > 1 or n <= 16:
        return _reduce_columns(term, x, sizes, dtype, finish, center)
    if center is None and queue.opened and queue.opens("cuda"):
        held: Array | None = queue.held.add_rows(term, x, outer, n, dtype, finish)
        if held is not None:
            return held
    while True:
        part, blocks, last_args = _row_parts(x, outer, n)
        parts = blocks_for(n, part)
        is_last = parts == 1
        out = backends.backend_of(x).empty((outer * parts,), dtype if is_last else float32)
        divisor, root = finish if is_last else _of_part(term)
        shape = np.int64(outer), np.int64(n), np.int64(part), np.int64(parts)
        args = x, out, center, *shape, np.float32(divisor), np.bool_(root), *last_args
        launch("reduction/reductions", typed("reduce_rows", term, x.dtype, out.dtype), blocks * parts, BLOCK, *args)
        if is_last:
            return out
        x, n, term, center = out, parts, THEN.get(term, term), None


def _reduce_columns(
    term: str, x: Array, sizes: tuple[int, int, int], dtype: DType, finish: Finish, center: Any
) -> Array:
    outer, n, inner = sizes
    while True:
        call = _column_call(term, x, (outer, n, inner), dtype, finish)
        out: Array | None = None
        if center is None and queue.opened and queue.waiting and queue.opens("cuda"):
            out = queue.held.add_columns(x, call)
        if out is None:
            out = backends.backend_of(x).empty((outer * call.parts * inner,), call.dtype)
            run_columns(call, x, out, center)
        if call.parts == 1:
            return out
        x, n, term, center = out, call.parts, THEN.get(term, term), None


def run_rows(term: str, x: Array, out: Array, rows: int, n: int, finish: Finish) -> None:
    """Reduce contiguous rows of at most PART values to `out` [rows] in one launch."""
    part, blocks, last_args = _row_parts(x, rows, n)
    sizes = np.int64(rows), np.int64(n), np.int64(part), np.int64(1)
    args = x, out, None, *sizes, np.float32(finish.divisor), np.bool_(finish.root), *last_args
    launch("reduction/reductions", typed("reduce_rows", term, x.dtype, out.dtype), blocks, BLOCK, *args)


def run_columns(call: ColumnCall, x: Array, out: Array, center: Array | None = None) -> None:
    """Reduce x, dense in memory, to `out`."""
    args = x, out, center, *call.numbers, np.bool_(call.vectorized), np.int32(call.depth)
    entry = typed("reduce_columns", call.term, x.dtype, out.dtype)
    launch("reduction/reductions", entry, call.blocks * call.parts, BLOCK, *args)


def _row_parts(x: Array, outer: int, n: int) -> tuple[int, int, tuple[Any, ...]]:
    """Elements per part, blocks per part and the last arguments of reduce_rows.

    A row has a warp, or for n > 1024 a block per part.
    """
    block_per_row = n > 1024
    vectorized = np.bool_(n % 8 == 0 and x.data.ptr % 16 == 0)
    blocks = outer if block_per_row else blocks_for(outer, BLOCK // 32)
    return (PART if block_per_row else n), blocks, (vectorized, np.bool_(block_per_row))


def _column_call(term: str, x: Array, sizes: tuple[int, int, int], dtype: DType, finish: Finish) -> ColumnCall:
    """The launch that reduces [outer, n, inner] over n, or over each part of it."""
    outer, n, inner = sizes
    vectorized = inner % 8 == 0 and x.data.ptr % 16 == 0
    units = outer * inner // (8 if vectorized else 1)
    depth = 1 if n <= 8 else max(8, BLOCK // (1 << (units - 1).bit_length()))
    blocks = blocks_for(units, BLOCK // depth)
    part = min(max(blocks_for(n, blocks_for(BLOCKS, blocks)), SHORT), LONG)
    parts = blocks_for(n, part)
    stored, finish = (dtype, finish) if parts == 1 else (float32, _of_part(term))
    return ColumnCall(term, sizes, part, parts, stored, finish, blocks, vectorized, depth)


def _as_output(
    flat: Array, shape: tuple[int, ...], order: tuple[int, ...], dims: tuple[int, ...], keepdim: bool
) -> Array:
    """The flat results, in memory order, as an array with the axes in the order of the input."""
    kept = [i for i in order if i not in dims]
    out = flat.reshape(tuple([shape[i] for i in kept])).transpose(tuple([kept.index(i) for i in sorted(kept)]))
    return out.reshape(tuple([1 if i in dims else n for i, n in enumerate(shape) if keepdim or i not in dims]))

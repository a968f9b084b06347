"""Reductions over any axes of arrays whose elements fill a piece of memory, in whatever order of axes.

The axes are put together in the order of memory: what is left is [outer, n, inner] for each run of neighbouring axes
that are reduced. Long rows and columns are reduced in parts first, and the parts then; float32 until the last launch.
Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import DType, bool_, float32

from ..nvrtc import MAX_ELEMENTS, STORED, blocks_for, launch, typed

Array = Any
BLOCK = 256
PART = 1 << 14  # elements of a row that a block reduces
BLOCKS = 1024  # as many keep a large GPU busy
SHORT, LONG = 64, 2048  # elements of a column that a block reduces, at least and at most
THEN = {  # what parts meet by
    **dict.fromkeys(("AddSquares", "AddAbs", "AddSquaredDifferences", "AddExps", "CountNonzero", "CountZero"), "Add"),
    "MaxAbs": "Maximum",
}


class Finish(NamedTuple):
    """What becomes of a total: it is divided, and its root taken."""

    divisor: float = 1.0
    root: bool = False


class Run(NamedTuple):
    """Neighbouring axes in memory, all reduced or all kept."""

    reduced: bool
    axes: tuple[int, ...]
    size: int


def axes_of(dim: Any, ndim: int) -> tuple[int, ...]:
    """`dim`, already checked: one axis or several; None and () are all. A scalar has none."""
    if dim is None or dim == () or dim == [] or not ndim:
        return tuple(range(ndim))
    return tuple([d % ndim for d in (dim if isinstance(dim, (tuple, list)) else (dim,))])


def memory_order(array: Array) -> tuple[int, ...] | None:
    """The axes longer than 1 as they lie in memory, outermost first; None where elements do not fill a piece of it."""
    order = sorted((i for i, n in enumerate(array.shape) if n > 1), key=lambda i: -array.strides[i])
    step = array.dtype.itemsize
    for i in reversed(order):
        if array.strides[i] != step:
            return None
        step *= array.shape[i]
    return tuple(order)


def reduced(
    kind: str,
    x: Array,
    dim: Any,
    keepdim: bool,
    dtype: DType,
    finish: Finish = Finish(),  # noqa: B008
    centre: Array | None = None,
) -> Any:
    """x reduced over `dim` in float32, rounded to `dtype`: float32 or x's own, for "Add" any that is stored.

    kind: a struct of reductions.cu. bool is counted too, and like exponentials in float32 alone.
    centre: float32, what AddGaps and AddExps subtract, a number per result in the order of memory; for one run of axes.
    NotImplemented where x does not fill a piece of memory, has no elements or is of a dtype that kernels do not store.
    """
    answers = STORED if kind == "Add" and x.dtype == float32 else (x.dtype, float32)
    read = STORED | {bool_} if kind in ("CountNonzero", "CountZero") else STORED
    order = memory_order(x) if x.dtype in read and dtype in answers and 0 < x.size <= MAX_ELEMENTS else None
    gone = axes_of(dim, x.ndim)
    if order is None or not any(i in gone for i in order):
        return NotImplemented
    runs = _runs(order, gone, x.shape)
    if centre is not None and sum(run.reduced for run in runs) > 1:
        return NotImplemented
    return _placed(_over_runs(kind, x, runs, dtype, finish, centre), x.shape, order, gone, keepdim)


def _runs(order: tuple[int, ...], gone: tuple[int, ...], shape: tuple[int, ...]) -> list[Run]:
    groups = [(hit, tuple(axes)) for hit, axes in groupby(order, lambda i: i in gone)]
    return [Run(hit, axes, prod(shape[i] for i in axes)) for hit, axes in groups]


def _over_runs(kind: str, x: Array, runs: list[Run], dtype: DType, finish: Finish, centre: Array | None) -> Array:
    """The innermost run first, as the most elements lie there."""
    left = [i for i, run in enumerate(runs) if run.reduced]
    while left:
        i = left.pop()
        sizes = prod(r.size for r in runs[:i]), runs[i].size, prod(r.size for r in runs[i + 1 :])
        x = _middle(kind, x, sizes, *((float32, Finish()) if left else (dtype, finish)), centre)
        runs, kind = runs[:i] + runs[i + 1 :], THEN.get(kind, kind)
    return x


def _middle(kind: str, x: Array, sizes: tuple[int, int, int], dtype: DType, finish: Finish, centre: Any) -> Array:
    """[outer, n, inner] over n -> [outer, inner], flat."""
    outer, n, inner = sizes
    rows = inner == 1 and n > 16
    while True:
        each, launched = _row_parts(x, sizes) if rows else _column_parts(x, sizes)
        parts = blocks_for(n, each)
        last = parts == 1
        out = backends.backend_of(x).empty((outer * parts * inner,), dtype if last else float32)
        entry = typed("reduce_rows" if rows else "reduce_columns", kind, x.dtype, out.dtype)
        divisor, root = finish if last else Finish()
        given = (np.int64(each), np.int64(parts)), (np.float32(divisor), np.bool_(root))
        launched(entry, x, out, centre, *given)
        if last:
            return out
        x, n, sizes, kind, centre = out, parts, (outer, parts, inner), THEN.get(kind, kind), None


def _row_parts(x: Array, sizes: tuple[int, int, int]) -> tuple[int, Callable[..., None]]:
    """Elements of a part, and what launches the kernel: a warp per row, or a block per part."""
    outer, n, _ = sizes
    wide = n > 1024
    packs = n % 8 == 0 and x.data.ptr % 16 == 0

    def launched(entry: str, x: Array, out: Array, centre: Any, shares: Any, finish: Any) -> None:
        grid = out.size if wide else blocks_for(outer, BLOCK // 32)
        shape = np.int64(outer), np.int64(n)
        launch(
            "reduction/reductions",
            entry,
            grid,
            BLOCK,
            x,
            out,
            centre,
            *shape,
            *shares,
            *finish,
            np.bool_(packs),
            np.bool_(wide),
        )

    return (PART if wide else n), launched


def _column_parts(x: Array, sizes: tuple[int, int, int]) -> tuple[int, Callable[..., None]]:
    """Elements of a part, and what launches the kernel: `down` threads per column, or per 8 of them."""
    outer, n, inner = sizes
    packs = inner % 8 == 0 and x.data.ptr % 16 == 0
    units = outer * inner // (8 if packs else 1)
    down = 1 if n <= 8 else max(8, BLOCK // (1 << (units - 1).bit_length()))
    blocks = blocks_for(units, BLOCK // down)
    each = min(max(blocks_for(n, blocks_for(BLOCKS, blocks)), SHORT), LONG)

    def launched(entry: str, x: Array, out: Array, centre: Any, shares: Any, finish: Any) -> None:
        shape = np.int64(outer), np.int64(n), np.int64(inner)
        grid = blocks * int(shares[1])
        launch(
            "reduction/reductions",
            entry,
            grid,
            BLOCK,
            x,
            out,
            centre,
            *shape,
            *shares,
            np.int32(down),
            *finish,
            np.bool_(packs),
        )

    return each, launched


def _placed(flat: Array, shape: tuple[int, ...], order: tuple[int, ...], gone: tuple[int, ...], keepdim: bool) -> Array:
    """Results in the order of memory, as an array with the axes in their order."""
    kept = [i for i in order if i not in gone]
    out = flat.reshape(tuple([shape[i] for i in kept])).transpose(tuple([kept.index(i) for i in sorted(kept)]))
    return out.reshape(tuple([1 if i in gone else n for i, n in enumerate(shape) if keepdim or i not in gone]))

"""How rows are shared out among warps and blocks, and the sums over rows that are gradients of weight and bias."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import DType

from ..array_layout import vector_width
from ..nvrtc import SHARED, blocks_for, cached_columns, launch, typed

Array = Any
WARPS = 4  # rows at a time of a block, where a warp has one each
PARTS = 528  # blocks that share out the rows in a backward: four for each multiprocessor of an H100
CHUNKS = 64  # blocks of rows, where a thread has a column
RUN = 256  # rows that a warp or a block adds up one after the other, at most


def cols_of(array: Array, normalized_shape: Any) -> int:
    """The length of a row of `array`."""
    axes = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    return math.prod(array.shape[array.ndim - axes :])


def shape(cols: int, *arrays: Array | None) -> tuple[int, int, bool]:
    """How a row is shared out: values at once, how often (0: more than registers hold), whether a block has the row."""
    if vector_width(cols, *arrays) == 1:
        return (1, 4, False) if cols <= 128 else (1, 0, True)
    if cols <= 1024:
        return 8, 1 if cols <= 256 else 4, False
    return 8, 2 if cols <= 8192 else 0, True


class Grid(NamedTuple):
    """How rows are launched. kept: columns of a row in shared memory; shared: bytes of it.

    sums: whether the kernel of dx adds up the gradients of weight and bias, too.
    """

    blocks: int
    threads: int
    kept: int = 0
    shared: int = 0
    sums: bool = True


def grid(array: Array, cols: int, how: tuple[int, int, bool]) -> Grid:
    """That of a forward: a team per row of `array`, which is kept where it is read again."""
    rows, (_, often, block) = array.size // cols, how
    if not block:
        return Grid(blocks_for(rows, WARPS), 32 * WARPS)
    kept = 0 if often else cached_columns(array, cols, array.dtype.itemsize)
    shared = kept * array.dtype.itemsize
    return Grid(rows, threads_of(cols, how, shared), kept, shared)


def threads_of(cols: int, how: tuple[int, int, bool], shared: int) -> int:
    """Threads of a block that has a row: more of them where a multiprocessor holds few blocks."""
    often, most = (1, 1024) if shared > SHARED else (how[1] or 4, 512)
    return min(most, blocks_for(blocks_for(cols, how[0] * often), 32) * 32)


def back_grid(dy: Array, x: Array, cols: int, how: tuple[int, int, bool], wanted: int) -> Grid:
    """That of the kernel of dx: a few blocks share out the rows where it adds up over them, too.

    wanted: how many gradients of weight and bias there are to be.
    """
    rows, (_, often, block) = x.size // cols, how
    if often:
        blocks = rows if block else blocks_for(rows, WARPS)
        shared = 0 if block else 4 * WARPS * cols
        return Grid(_shared_out(blocks, PARTS), threads_of(cols, how, 0) if block else 32 * WARPS, 0, shared)
    there: Any = backends.backend_of(x)
    row = dy.dtype.itemsize + x.dtype.itemsize
    sums = 4 * wanted * blocks_for(cols, 8) * 8
    if not 0 < sums <= there.shared:  # none wanted, or no room: another kernel finds them
        sums = 0
    kept = cached_columns(x, cols, row, sums)
    shared = kept * row + sums
    blocks = _shared_out(rows, PARTS * min(4, there.shared // shared) // 4) if sums else rows
    return Grid(blocks, threads_of(cols, how, shared), kept, shared, sums > 0)


def _shared_out(blocks: int, parts: int) -> int:
    return min(max(1, parts, blocks_for(blocks, RUN)), blocks)


def weight_columns(dy: Array, x: Array, statistics: list[Array], parts: list[Any]) -> None:
    """Leave the sums of the gradients of weight and bias over blocks of rows in `parts`, where dx's kernel did not."""
    some = next((p for p in parts if p is not None), None)
    if some is None:
        return
    mean, rstd = (None, *statistics)[-2:]
    blocks = blocks_for(x.shape[1], 128), len(some)
    entry, sizes = typed("norm_weight_backward", x.dtype, dy.dtype), map(np.int64, x.shape)
    launch("nn/layer_norm", entry, blocks, 128, dy, x, mean, rstd, *(*parts, None)[:2], *sizes)


def weight_sums(parts: list[Any], needs: Any, grad_buffers: Any, shape: tuple[int, ...]) -> list[Any]:
    """Each of `parts` [parts, cols], one or two, summed over its first axis: in `needs` dtype, None where that is None.

    grad_buffers: memory to leave them in, or None. shape: of the answers.
    """
    outs = [
        None if part is None else _home(part, need, home, shape)
        for part, need, home in zip(parts, needs, grad_buffers, strict=True)
    ]
    for dtype in dict.fromkeys(need for need in needs if need is not None):
        _sums(parts, [out if need == dtype else None for out, need in zip(outs, needs, strict=True)], dtype)
    return outs


def _home(part: Array, need: DType, home: Any, shape: tuple[int, ...]) -> Array:
    taken = home is not None and home.dtype == need and home.shape == shape and bool(home.flags.c_contiguous)
    return home if taken else backends.backend_of(part).empty(shape, need)


def _sums(parts: list[Any], outs: list[Any], dtype: DType) -> None:
    some = next(p for p in parts if p is not None)
    first, second = (p if p is not None else some for p in (*parts, None)[:2])
    dw, db = (*outs, None)[:2]
    count, cols = some.shape
    blocks, threads = (blocks_for(cols, 32), 1 if db is None else 2), 32 * min(32, max(1, count))
    sizes = np.int64(count), np.int64(cols)
    launch("nn/layer_norm", typed("norm_weight_sums", dtype), blocks, threads, first, second, dw, db, *sizes)

"""Launch parameters of normalization kernels over rows, and the column sums that are gradients of weight and bias."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array, DType

from ..array_layout import vector_width
from ..nvrtc import SHARED, blocks_for, cached_columns, launch, typed

WARPS = 4  # warps per block, where a warp has a row
MULTIPROCESSORS = 132  # of an H100: a fixed number, so that sums over rows have the same order on every GPU
RESIDENT = 32  # warps that a multiprocessor holds, of kernels with up to 64 registers for a thread
MAX_THREADS = 512  # of a block whose row is in registers; as in norm.cuh
CHUNKS = 64  # partial sums per column, where a thread has a column
RUN = 256  # rows that a warp or a block adds up serially, at most: bounds the rounding error


def cols_of(array: Array, normalized_shape: Any) -> int:
    """The length of a row of `array`: the product of its trailing axes, as many as `normalized_shape` has."""
    axes = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    return math.prod(array.shape[array.ndim - axes :])


class RowPlan(NamedTuple):
    """How threads read a row: values per access; accesses per thread, 0 where registers cannot hold the row; whether a
    row has a block, not a warp."""

    width: int
    accesses: int
    block: bool


def row_plan(cols: int, *arrays: Array | None) -> RowPlan:
    """The plan for rows of `cols` values of these arrays, as their length and alignment allow."""
    if vector_width(cols, *arrays) == 1:
        return RowPlan(1, 4, False) if cols <= 128 else RowPlan(1, 0, True)
    if cols <= 1024:
        return RowPlan(8, 1 if cols <= 256 else 4, False)
    return RowPlan(8, 2 if cols <= 8192 else 0, True)


def back_plan(cols: int, *arrays: Array | None) -> RowPlan:
    """The plan of a backward, whose threads keep dy, x and the sums for weight and bias in registers.

    A row of more than 256 values has a block, with one access for each thread: 64 registers, not the 168 of a warp's.
    """
    plan = row_plan(cols, *arrays)
    return RowPlan(8, 1, True) if plan.width == 8 and 256 < cols <= 8 * MAX_THREADS else plan


class Grid(NamedTuple):
    """Launch parameters of a kernel over rows.

    cached: columns of a row that stay in shared memory; shared: bytes of shared memory per block; sums: whether the
    kernel of dx also computes partial sums of the gradients of weight and bias.
    """

    blocks: int
    threads: int
    cached: int = 0
    shared: int = 0
    sums: bool = True

    def launch(self, source: str, entry: str, *args: Any) -> None:
        """Launch an entry of `<source>.cu`."""
        launch(source, entry, self.blocks, self.threads, *args, shared=self.shared)


def grid(array: Array, cols: int, plan: RowPlan) -> Grid:
    """The Grid of a forward: a warp or a block per row; rows too long for registers are cached in shared memory."""
    rows = array.size // cols
    if not plan.block:
        return Grid(blocks_for(rows, WARPS), 32 * WARPS)
    cached = 0 if plan.accesses else cached_columns(array, cols, array.dtype.itemsize)
    shared = cached * array.dtype.itemsize
    return Grid(rows, threads_of(cols, plan, shared), cached, shared)


def threads_of(cols: int, plan: RowPlan, shared: int) -> int:
    """Threads of a block that has a row; more where shared memory leaves few blocks per multiprocessor."""
    accesses, max_threads = (1, 1024) if shared > SHARED else (plan.accesses or 4, MAX_THREADS)
    return min(max_threads, blocks_for(blocks_for(cols, plan.width * accesses), 32) * 32)


def back_grid(dy: Array, x: Array, cols: int, plan: RowPlan, wanted: int) -> Grid:
    """The Grid of the kernel of dx; where it also sums over rows, as many blocks as a GPU holds, of several rows each.

    wanted: how many of the gradients of weight and bias are needed.
    """
    rows, (_, accesses, block) = x.size // cols, plan
    if accesses:
        threads, shared = (threads_of(cols, plan, 0), 0) if block else (32 * WARPS, 4 * WARPS * cols)
        parts = MULTIPROCESSORS * max(1, 32 * RESIDENT // threads)
        blocks = blocks_for(rows, WARPS)  # with fewer rows each, sums would be as large as what is summed
        return Grid(_limited(blocks, parts, rows if block else blocks), threads, 0, shared)
    backend: Any = backends.backend_of(x)
    row_bytes = dy.dtype.itemsize + x.dtype.itemsize
    sums = 4 * wanted * blocks_for(cols, 8) * 8
    if not 0 < sums <= backend.shared:  # none needed, or too little shared memory: `weight_columns` computes them
        sums = 0
    cached = cached_columns(x, cols, row_bytes, sums)
    shared = cached * row_bytes + sums
    blocks = _limited(rows, MULTIPROCESSORS * min(4, backend.shared // shared), rows) if sums else rows
    return Grid(blocks, threads_of(cols, plan, shared), cached, shared, sums > 0)


def _limited(blocks: int, parts: int, rows: int) -> int:
    """At most `parts` of these blocks, or more if each would add up more than RUN of `rows`, one after the other."""
    return min(max(1, parts, blocks_for(rows, RUN)), blocks)


def weight_columns(dy: Array, x: Array, statistics: list[Array], parts: list[Any]) -> None:
    """Write partial sums of the gradients of weight and bias to `parts`, each [chunks, cols] float32 or None."""
    any_part = next((p for p in parts if p is not None), None)
    if any_part is None:
        return
    mean, rstd = (None, *statistics)[-2:]
    blocks = blocks_for(x.shape[1], 128), len(any_part)
    entry, sizes = typed("norm_weight_backward", x.dtype, dy.dtype), map(np.int64, x.shape)
    launch("nn/layer_norm", entry, blocks, 128, dy, x, mean, rstd, *(*parts, None)[:2], *sizes)


def weight_sums(parts: list[Any], needs: Any, grad_buffers: Any, shape: tuple[int, ...]) -> list[Any]:
    """Sum one or two arrays `parts` [chunks, cols] float32 over the first axis, cast to `needs`; None where not needed.

    grad_buffers: arrays to write to if dtype and shape match, or None. shape: that of the results.
    """
    outs = [
        None if part is None else _output(part, need, buffer, shape)
        for part, need, buffer in zip(parts, needs, grad_buffers, strict=True)
    ]
    for dtype in dict.fromkeys(need for need in needs if need is not None):
        _sum_parts(parts, [out if need == dtype else None for out, need in zip(outs, needs, strict=True)], dtype)
    return outs


def _output(part: Array, need: DType, buffer: Any, shape: tuple[int, ...]) -> Array:
    """`buffer` if it has this dtype and shape and is contiguous, else a new array."""
    fits = buffer is not None and buffer.dtype == need and buffer.shape == shape and bool(buffer.flags.c_contiguous)
    return buffer if fits else backends.backend_of(part).empty(shape, need)


def _sum_parts(parts: list[Any], outs: list[Any], dtype: DType) -> None:
    given, wanted = [p for p in parts if p is not None], [out for out in outs if out is not None]
    places = [out is not None for out in outs]

    def call(read: Any, written: Any) -> None:
        of_parts, of_outs = iter(read), iter(written)
        filled = [None if p is None else next(of_parts) for p in parts]
        _launch_sums(filled, [next(of_outs) if place else None for place in places], dtype)

    if queue.opened and queue.opens("cuda"):
        if queue.held.add_following("sums of weights", call, given, wanted):
            return
        if queue.waiting:
            queue.flush((), wanted)
    call(given, wanted)


def _launch_sums(parts: list[Any], outs: list[Any], dtype: DType) -> None:
    any_part = next(p for p in parts if p is not None)
    first, second = (p if p is not None else any_part for p in (*parts, None)[:2])
    dw, db = (*outs, None)[:2]
    count, cols = any_part.shape
    blocks, threads = (blocks_for(cols, 32), 1 if db is None else 2), 32 * min(32, max(1, count))
    sizes = np.int64(count), np.int64(cols)
    launch("nn/layer_norm", typed("norm_weight_sums", dtype), blocks, threads, first, second, dw, db, *sizes)

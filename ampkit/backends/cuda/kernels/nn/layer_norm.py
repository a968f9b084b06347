"""Kernels of layer_norm, rms_norm and group_norm: a warp or a block per row, which lies in its registers.

Rows are read once each way: up to 8192 values lie in registers, longer rows, and those of odd length, in shared memory
between the passes over them; of a row that does not fit there, the rest is read for each pass. The gradients of weight
and bias are sums over the rows of a block, then over the blocks. Not yet run on a GPU.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, supports_dtypes, to_float32, vector_width
from ampkit.backends.cuda.launch.rows import (
    CHUNKS,
    Grid,
    back_grid,
    cols_of,
    grid,
    shape,
    threads_of,
    weight_columns,
    weight_sums,
)
from ampkit.backends.cuda.nvrtc import C_NAMES, MAX_ELEMENTS, STORED, blocks_for, cached_columns, launch, typed
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.layer_norm import group_norm, layer_norm, rms_norm

Array = Any
EPS = float(np.finfo(np.float32).eps)


def _entry(name: str, stored: DType, answered: DType, shape: tuple[int, int, bool]) -> str:
    return typed(name, C_NAMES[stored], C_NAMES[answered], str(shape[0]), str(shape[1]), str(shape[2]).lower())


def _known(array: Array) -> bool:
    return array.dtype in STORED and 0 < array.size <= MAX_ELEMENTS


# layer_norm and rms_norm: rows are the trailing axes, flat


def _forward(name: str, input: Array, cols: int, scales: list[Any], statistics: int, eps: float, dtype: DType) -> Any:
    """The answer and so many statistics of each row [rows, 1]."""
    there, rows = backends.backend_of(input), input.size // cols
    x, out, scales = contiguous(input), there.empty(input.shape, dtype), [to_float32(s) for s in scales]
    found = [there.empty((rows, 1), float32) for _ in range(statistics)]
    how = shape(cols, x, out, *scales)
    on = grid(x, cols, how)
    args = x, *scales, out, *found, np.int64(rows), np.int64(cols), np.int64(on.kept), np.float32(eps)
    launch("nn/layer_norm", _entry(name, x.dtype, dtype, how), on.blocks, on.threads, *args, shared=on.shared)
    return out, *found


@layer_norm.on("cuda", when=lambda input, *more: _known(input))
def layer_norm_cuda(
    input: Array, normalized_shape: Any, weight: Array | None, bias: Array | None, eps: float, *, dtype: DType
) -> Any:
    if not supports_dtypes(input.dtype, dtype):
        return NotImplemented
    cols = cols_of(input, normalized_shape)
    out, mean, rstd = _forward("layer_norm_forward", input, cols, [weight, bias], 2, eps, dtype)
    return out, Saved(input=input, weight=weight, mean=mean, rstd=rstd)


@rms_norm.on("cuda", when=lambda input, *more: _known(input))
def rms_norm_cuda(input: Array, normalized_shape: Any, weight: Array | None, eps: float | None, *, dtype: DType) -> Any:
    if not supports_dtypes(input.dtype, dtype):
        return NotImplemented
    cols, eps = cols_of(input, normalized_shape), EPS if eps is None else eps
    out, rstd = _forward("rms_norm_forward", input, cols, [weight], 1, eps, dtype)
    return out, Saved(input=input, weight=weight, rstd=rstd)


def _fits(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
    known = _known(saved.input) and saved.rstd.dtype == float32 and supports_dtypes(saved.input.dtype, dy.dtype)
    return known and needs[0] in (None, saved.input.dtype) and all(n is None or n in STORED for n in needs[1:])


@layer_norm.on_backward("cuda", when=_fits, wants_cache=True)
def layer_norm_backward_cuda(
    dy: Array, saved: Saved, needs: Any, normalized_shape: Any, eps: float, versions: Any, grad_buffers: Any
) -> Any:
    return _backward("layer_norm_backward", dy, saved, [saved.mean, saved.rstd], needs, grad_buffers, normalized_shape)


@rms_norm.on_backward("cuda", when=_fits, wants_cache=True)
def rms_norm_backward_cuda(
    dy: Array, saved: Saved, needs: Any, normalized_shape: Any, eps: Any, versions: Any, grad_buffers: Any
) -> Any:
    return _backward("rms_norm_backward", dy, saved, [saved.rstd], needs, grad_buffers, normalized_shape)


def _backward(
    name: str, dy: Array, saved: Saved, statistics: list[Array], needs: Any, grad_buffers: Any, normalized_shape: Any
) -> Any:
    cols = cols_of(dy, normalized_shape)
    slope, x = (contiguous(a).reshape(-1, cols) for a in (dy, saved.input))
    weight = to_float32(vars(saved).get("weight"))  # not saved where only dx reads it
    dx = backends.backend_of(dy).empty(x.shape, x.dtype) if needs[0] else None
    how = shape(cols, slope, x, weight, dx)
    on = back_grid(slope, x, cols, how, sum(need is not None for need in needs[1:]))
    summed = dx is not None and on.sums
    count = on.blocks if summed else min(CHUNKS, len(x))
    parts = [None if need is None else backends.backend_of(dy).empty((count, cols), float32) for need in needs[1:]]
    if dx is not None:
        _slopes(name, slope, x, weight, statistics, dx, parts if summed else [None] * len(parts), how, on)
    if not summed:
        weight_columns(slope, x, statistics, parts)
    size = () if isinstance(normalized_shape, int) else normalized_shape
    sums = weight_sums(parts, needs[1:], grad_buffers[1:], dy.shape[dy.ndim - max(1, len(size)) :])
    return dx if dx is None else dx.reshape(dy.shape), *sums


def _slopes(
    name: str, dy: Array, x: Array, weight: Any, statistics: list[Array], dx: Array, sums: list[Any], how: Any, on: Grid
) -> None:
    args = dy, x, weight, *statistics, dx, *sums, *map(np.int64, x.shape), np.int64(on.kept)
    launch("nn/layer_norm", _entry(name, x.dtype, dy.dtype, how), on.blocks, on.threads, *args, shared=on.shared)


# group_norm: a row is a group of channels; a weight belongs to a channel


def _plan(input: Array, groups: int) -> tuple[int, int, int, int]:
    """Rows, their length, channels of a row and values of a channel."""
    rows = input.shape[0] * groups
    spots = math.prod(input.shape[2:])
    return rows, input.size // rows, input.shape[1] // groups, spots


@group_norm.on("cuda", when=lambda input, *more: _known(input))
def group_norm_cuda(
    input: Array, num_groups: int, weight: Array | None, bias: Array | None, eps: float, *, dtype: DType
) -> Any:
    if not supports_dtypes(input.dtype, dtype):
        return NotImplemented
    there, (rows, cols, many, spots) = backends.backend_of(input), _plan(input, num_groups)
    x, out = contiguous(input), there.empty(input.shape, dtype)
    mean, rstd = (there.empty((rows, 1), float32) for _ in range(2))
    how = shape(cols, x, out)
    on = grid(x, cols, how)
    sizes = np.int64(rows), np.int64(cols), np.int64(on.kept), np.float32(eps)
    args = (
        x,
        to_float32(weight),
        to_float32(bias),
        out,
        mean,
        rstd,
        *sizes,
        np.int32(num_groups),
        np.int32(many),
        np.int32(spots),
    )
    entry = _entry("group_norm_forward", x.dtype, dtype, how)
    launch("nn/group_norm", entry, on.blocks, on.threads, *args, shared=on.shared)
    return out, Saved(input=input, weight=weight, mean=mean, rstd=rstd)


@group_norm.on_backward("cuda", when=_fits, wants_cache=True)
def group_norm_backward_cuda(
    dy: Array, saved: Saved, needs: Any, num_groups: int, eps: float, versions: Any, grad_buffers: Any
) -> Any:
    slope, x = contiguous(dy), contiguous(saved.input)
    _, _, many, spots = _plan(x, num_groups)
    sums = [backends.backend_of(x).empty(x.shape[:2], float32) for _ in range(2)]
    shared = _shared_of_group(slope, x, num_groups) if needs[0] else 0
    if not shared:
        threads = min(256, -(-spots // 32) * 32)
        given = slope, x, saved.mean, saved.rstd, *sums, np.int32(many), np.int64(spots)
        launch("nn/group_norm", typed("group_norm_channel_sums", x.dtype, dy.dtype), sums[0].size, threads, *given)
    dx = _group_slopes(slope, x, saved, sums, num_groups, shared) if needs[0] else None
    parts = [None if need is None else each for each, need in zip(sums, needs[1:], strict=True)]
    return dx, *weight_sums(parts, needs[1:], grad_buffers[1:], x.shape[1:2])


def _shared_of_group(dy: Array, x: Array, groups: int) -> int:
    """Bytes of shared memory for a row of both, or 0 where they do not fit."""
    cols, each = _plan(x, groups)[1], dy.dtype.itemsize + x.dtype.itemsize
    kept = cached_columns(x, cols, each)
    return kept * each if kept >= cols else 0


def _group_slopes(dy: Array, x: Array, saved: Saved, sums: list[Array], groups: int, shared: int) -> Array:
    """dx. The kernel leaves the sums over channels in `sums` if it has shared memory, or takes them from there."""
    rows, cols, many, spots = _plan(x, groups)
    dx = backends.backend_of(x).empty(x.shape, x.dtype)
    at_once = vector_width(cols, dy, x, dx)
    threads = threads_of(cols, (at_once, 1, True), shared) if shared else min(256, -(-cols // (32 * at_once)) * 32)
    blocks = rows, 1 if shared else min(64, blocks_for(cols, threads * at_once * 4))
    args = dy, x, to_float32(vars(saved).get("weight")), saved.mean, saved.rstd, *sums, dx, np.int64(cols)
    kept = str(shared > 0).lower()
    entry = typed("group_norm_backward", C_NAMES[x.dtype], C_NAMES[dy.dtype], str(at_once), kept)
    sizes = np.int32(groups), np.int32(many), np.int32(spots)
    launch("nn/group_norm", entry, blocks, threads, *args, *sizes, shared=shared)
    return dx

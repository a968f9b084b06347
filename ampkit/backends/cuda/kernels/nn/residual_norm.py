"""Kernels of a residual sum and the layer norm behind it: the kernels of layer_norm, which add as they read.

The stream is read once and the sum written once; the backward adds the two gradients that meet in the stream, and masks
the branch's, as it stores them. Not yet run on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, to_float32
from ampkit.backends.cuda.launch.rows import CHUNKS, back_grid, cols_of, grid, shape, weight_columns, weight_sums
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED, drawn, launch, typed
from ampkit.base.dtypes import LOW, DType, float32
from ampkit.core.autograd.saved import Saved, widen
from ampkit.ops.nn.dropout import dropout_scale
from ampkit.ops.nn.residual_norm import add_layer_norm_, saved_of_norm, saved_of_sum

Array = Any


def _forms(residual: DType, branch: DType, norm: DType) -> bool:
    """Whether there is a kernel for these: all alike, or a float32 stream with 16 bits in the branch."""
    if residual == branch == norm:
        return residual in STORED
    return residual == float32 and branch in LOW and norm in (branch, float32)


def _fits(residual: Array, branch: Array, *more: Any) -> bool:
    return 0 < residual.size <= MAX_ELEMENTS and _forms(residual.dtype, branch.dtype, residual.dtype)


@add_layer_norm_.on("cuda", when=_fits)
def add_layer_norm_cuda(
    residual: Array, branch: Array, weight: Array | None, bias: Array | None, normalized_shape: Any, eps: float,
    dropout_p: float, draw: Any, normed: DType | None, *, dtype: DType,
) -> Any:  # fmt: skip
    if dtype != residual.dtype:
        return NotImplemented
    there: Any = backends.backend_of(residual)
    cols = cols_of(residual, normalized_shape)
    rows, answered = residual.size // cols, normed or dtype
    stored = answered if _forms(dtype, branch.dtype, answered) else dtype
    x, y = contiguous(residual), contiguous(branch)
    total, norm = there.empty(x.shape, dtype), there.empty(x.shape, stored)
    mean, rstd = (there.empty((rows, 1), float32) for _ in range(2))
    keep = None if draw is None else there.empty(x.shape, np.dtype(bool))
    scales = to_float32(weight), to_float32(bias)
    how = shape(cols, x, y, *scales, total, norm, keep)
    on = grid(total, cols, how)
    sizes = np.int64(rows), np.int64(cols), np.int64(on.kept), np.float32(eps)
    args = x, y, *scales, total, norm, mean, rstd, *sizes
    chance = np.uint32(round(dropout_p * 65536)), np.float32(dropout_scale(dropout_p))  # see random.keep_mask
    entry = _entry("forward", dtype, branch.dtype, stored, how)
    random = drawn(there, *(draw or (0, 0)))
    launch("nn/residual_norm", entry, on.blocks, on.threads, *args, keep, *chance, *random, shared=on.shared)
    saved = saved_of_sum(Saved(input=total, weight=weight, mean=mean, rstd=rstd), keep)
    return (norm, saved) if normed is None else (total, widen(norm, normed), Saved(out=total, **vars(saved)))


def _entry(name: str, residual: DType, branch: DType, norm: DType, how: tuple[int, int, bool]) -> str:
    return typed(f"add_layer_norm_{name}", residual, branch, norm, str(how[0]), str(how[1]), str(how[2]).lower())


def _back_fits(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
    total, (dresidual, dbranch, *scales) = saved.as_residual, needs
    known = 0 < total.size <= MAX_ELEMENTS and total.dtype in STORED and saved.rstd.dtype == float32
    known = known and dresidual in (None, total.dtype) and all(n is None or n in STORED for n in scales)
    return known and bool(dresidual or dbranch) and _forms(total.dtype, dbranch or total.dtype, total.dtype)


@add_layer_norm_.on_backward("cuda", when=_back_fits, wants_cache=True)
def add_layer_norm_backward_cuda(
    dy: Any, saved: Saved, needs: Any, normalized_shape: Any, eps: float, dropout_p: float, draw: Any, normed: Any,
    versions: Any, grad_buffers: Any,
) -> Any:  # fmt: skip
    dsum, dnorm = (None, dy) if normed is None else dy
    kept, cols, there = (
        saved_of_norm(saved),
        cols_of(saved.as_residual, normalized_shape),
        backends.backend_of(saved.as_residual),
    )
    total, rows = kept.input, kept.input.size // cols
    branch = needs[1] or total.dtype
    if not _forms(total.dtype, branch, dnorm.dtype):
        dnorm = widen(dnorm, total.dtype)
    slope, dsum, weight = contiguous(dnorm), None if dsum is None else contiguous(dsum), to_float32(kept.weight)
    dresidual, dbranch = (None if need is None else there.empty(total.shape, need) for need in needs[:2])
    how = shape(cols, slope, dsum, total, weight, dresidual, dbranch, saved.keep)
    on = back_grid(slope, total, cols, how, sum(need is not None for need in needs[2:]))
    count = on.blocks if on.sums else min(CHUNKS, rows)
    parts = [None if need is None else there.empty((count, cols), float32) for need in needs[2:]]
    sums = parts if on.sums else [None, None]
    sizes = np.int64(rows), np.int64(cols), np.int64(on.kept)
    args = slope, dsum, total, weight, kept.mean, kept.rstd, dresidual, dbranch, *sums, *sizes
    entry = _entry("backward", total.dtype, branch, dnorm.dtype, how)
    launch(
        "nn/residual_norm",
        entry,
        on.blocks,
        on.threads,
        *args,
        saved.keep,
        np.float32(dropout_scale(dropout_p)),
        shared=on.shared,
    )
    if not on.sums:
        first, second = (widen(each, float32).reshape(-1, cols) for each in (slope, total))
        weight_columns(first, second, [kept.mean, kept.rstd], parts)
    lead = total.ndim - (1 if isinstance(normalized_shape, int) else len(normalized_shape))
    return dresidual, dbranch, *weight_sums(parts, needs[2:], grad_buffers[2:], total.shape[lead:])

"""CUDA kernels of residual + dropout(branch) followed by layer_norm, in one pass over memory.

The residual stream is read once and the sum written once. The backward adds the gradient of the sum to that through the
norm, and applies the dropout mask to the gradient of the branch, as it stores both.
"""

from __future__ import annotations

from operator import eq
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, supports_array, to_float32
from ampkit.backends.cuda.launch.rows import (
    CHUNKS,
    back_grid,
    back_plan,
    cols_of,
    grid,
    row_plan,
    weight_columns,
    weight_sums,
)
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED, drawn, typed
from ampkit.base.dtypes import LOW, Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.core.casts import widen
from ampkit.kernels.shared.norms import register_residual_norm
from ampkit.ops.nn.dropout import dropout_scale
from ampkit.ops.nn.residual_norm import saved_of_norm


def _supports_dtypes(residual: DType, branch: DType, norm: DType) -> bool:
    """Whether a kernel takes these dtypes: all equal, or a float32 residual with a 16-bit branch."""
    if residual == branch == norm:
        return residual in STORED
    return residual == float32 and branch in LOW and norm in (branch, float32)


def _fits(residual: Array, branch: Array, *more: Any) -> bool:
    return 0 < residual.size <= MAX_ELEMENTS and _supports_dtypes(residual.dtype, branch.dtype, residual.dtype)


def _normalized(
    residual: Array, branch: Array, weight: Array | None, bias: Array | None, normalized_shape: Any, eps: float,
    p: float, draw: Any, normed: DType, dtype: DType,
) -> Any:  # fmt: skip
    backend: Any = backends.backend_of(residual)
    cols = cols_of(residual, normalized_shape)
    rows, stored = residual.size // cols, normed if _supports_dtypes(dtype, branch.dtype, normed) else dtype
    x, y = contiguous(residual), contiguous(branch)
    total, norm = backend.empty(x.shape, dtype), backend.empty(x.shape, stored)
    mean, rstd = (backend.empty((rows, 1), float32) for _ in range(2))
    keep = None if draw is None else backend.empty(x.shape, np.dtype(bool))
    scales = to_float32(weight), to_float32(bias)
    plan = row_plan(cols, x, y, *scales, total, norm, keep)
    config = grid(total, cols, plan)
    sizes = np.int64(rows), np.int64(cols), np.int64(config.cached), np.float32(eps)
    args = x, y, *scales, total, norm, mean, rstd, *sizes
    drop = np.uint32(round(p * 65536)), np.float32(dropout_scale(p))  # see random.keep_mask
    entry = typed("add_layer_norm_forward", dtype, branch.dtype, stored, *plan)
    config.launch("nn/residual_norm", entry, *args, keep, *drop, *drawn(backend, *(draw or (0, 0))))
    return total, norm, mean, rstd, keep


def _readable(grads: Any, saved: Saved, needs: Any) -> bool:
    total, (dresidual, dbranch, *scales) = saved.total, needs
    known = supports_array(total) and dresidual in (None, total.dtype) and all(n is None or n in STORED for n in scales)
    return known and bool(dresidual or dbranch) and _supports_dtypes(total.dtype, dbranch or total.dtype, total.dtype)


def _gradients(
    dnorm: Array, dsum: Array | None, saved: Saved, needs: Any, normalized_shape: Any, p: float, versions: Any,
    grad_buffers: Any,
) -> Any:  # fmt: skip
    norm_saved, cols = saved_of_norm(saved), cols_of(saved.total, normalized_shape)
    total, backend = norm_saved.input, backends.backend_of(saved.total)
    rows = total.size // cols
    branch = needs[1] or total.dtype
    if not _supports_dtypes(total.dtype, branch, dnorm.dtype):
        dnorm = widen(dnorm, total.dtype)
    grad, dsum, weight = contiguous(dnorm), None if dsum is None else contiguous(dsum), to_float32(norm_saved.weight)
    dresidual, dbranch = (None if need is None else backend.empty(total.shape, need) for need in needs[:2])
    plan = back_plan(cols, grad, dsum, total, weight, dresidual, dbranch, saved.keep)
    config = back_grid(grad, total, cols, plan, sum(need is not None for need in needs[2:]))
    count = config.blocks if config.sums else min(CHUNKS, rows)
    parts = [None if need is None else backend.empty((count, cols), float32) for need in needs[2:]]
    sums = parts if config.sums else [None, None]
    sizes = np.int64(rows), np.int64(cols), np.int64(config.cached)
    args = grad, dsum, total, weight, norm_saved.mean, norm_saved.rstd, dresidual, dbranch, *sums, *sizes
    entry = typed("add_layer_norm_backward", total.dtype, branch, dnorm.dtype, *plan)
    config.launch("nn/residual_norm", entry, *args, saved.keep, np.float32(dropout_scale(p)))
    if not config.sums:
        first, second = (widen(each, float32).reshape(-1, cols) for each in (grad, total))
        weight_columns(first, second, [norm_saved.mean, norm_saved.rstd], parts)
    lead = total.ndim - (1 if isinstance(normalized_shape, int) else len(normalized_shape))
    return dresidual, dbranch, *weight_sums(parts, needs[2:], grad_buffers[2:], total.shape[lead:])


register_residual_norm("cuda", _normalized, _gradients, _fits, _readable, wants_cache=True, dtypes=eq)

"""CUDA kernels of softmax and log_softmax along the last axis of contiguous arrays: a warp or a block per row.

Short rows stay in registers, longer ones in shared memory, so that global memory is read once; the part of a row that
does not fit is read twice. logsumexp is two reductions and an elementwise kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, supports_dtypes, supports_rows, vector_width
from ampkit.backends.cuda.launch.row_alignment import LARGE
from ampkit.backends.cuda.nvrtc import SHARED, blocks_for, cached_columns, launch, typed
from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.norms import register_softmax
from ampkit.kernels.shared.reduction import register_logsumexp

from ..pointwise import LAUNCHER
from ..reduction.reductions import fits, reduced_with_axes

register_logsumexp(LAUNCHER, reduced_with_axes, fits)

WARPS = 4  # rows per block where each row has a warp


def _supports_rows(array: Array, dim: int, dtype: Any = None) -> bool:
    last = array.ndim > 0 and dim in (-1, array.ndim - 1)
    return last and supports_rows(array, array.shape[-1]) and bool(array.flags.c_contiguous or _is_large(array))


def _is_large(array: Array) -> bool:
    """Whether an array is made of long contiguous rows, such as logits: it is copied where they lie apart."""
    return array.strides[-1] == array.itemsize and array.shape[-1] >= LARGE


def _shape(cols: int, *arrays: Array) -> tuple[int, int]:
    """Values per access, and accesses per lane where a row has a warp; 0 accesses: it has a block."""
    width = vector_width(cols, *arrays)
    for accesses in (1, 4) if width == 8 else (4,):
        if cols <= 32 * width * accesses:
            return width, accesses
    return width, 0


def _grid(rows: int, cols: int, accesses: int, shared: int) -> tuple[int, int]:
    """Blocks and threads: WARPS rows per block, or a block per row, larger where shared memory limits occupancy."""
    if accesses:
        return blocks_for(rows, WARPS), 32 * WARPS
    return rows, 128 if cols <= 1024 else 512 if shared <= SHARED else 1024


def _launch(
    name: str, stored: DType, out_dtype: DType, shape: tuple[int, int], cols: int, column_bytes: int, *args: Array
) -> None:
    """Launch `name`. column_bytes: bytes per column that a block caches in shared memory for its second pass."""
    rows, cached = args[0].size // cols, 0 if shape[1] else cached_columns(args[0], cols, column_bytes)
    shared, sizes = cached * column_bytes, (np.int64(rows), np.int64(cols), np.int64(cached))
    entry = typed(name, stored, out_dtype, *shape)
    launch("nn/softmax", entry, *_grid(rows, cols, shape[1], shared), *args, *sizes, shared=shared)


def _normalized(input: Array, dim: int, logarithm: bool, dtype: DType) -> Array:
    out, input = backends.backend_of(input).empty(input.shape, dtype), contiguous(input)
    name, cols = "log_softmax_forward" if logarithm else "softmax_forward", input.shape[-1]
    _launch(name, input.dtype, dtype, _shape(cols, input, out), cols, input.dtype.itemsize, input, out)
    return out


def _gradient(dy: Array, out: Array, dim: int, logarithm: bool, dtype: DType) -> Array:
    dx, dy, out = backends.backend_of(dy).empty(dy.shape, dtype), contiguous(dy), contiguous(out)
    name, cols = "log_softmax_backward" if logarithm else "softmax_backward", dy.shape[-1]
    _launch(name, dtype, out.dtype, _shape(cols, dy, out, dx), cols, 2 * out.dtype.itemsize, dy, out, dx)
    return dx


def _readable(dy: Array, saved: Saved, needs: Any, dim: int, dtype: Any) -> bool:
    known = dy.dtype == saved.out.dtype and supports_dtypes(needs[0], dy.dtype)
    return known and _supports_rows(dy, dim) and _supports_rows(saved.out, dim)


register_softmax(LAUNCHER, _normalized, _gradient, _supports_rows, _readable, supports_dtypes)

"""CUDA kernels of softmax and log_softmax along the last axis of contiguous arrays: a warp or a block per row.

Short rows stay in registers, longer ones in shared memory, so that global memory is read once; the part of a row that
does not fit is read twice. logsumexp is two reductions and an elementwise kernel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import contiguous, supports_dtypes, supports_rows, vector_width
from ampkit.backends.cuda.launch.row_alignment import LARGE
from ampkit.backends.cuda.launch.rows import WARPS, Grid
from ampkit.backends.cuda.launch.template_chains import TemplateCall
from ampkit.backends.cuda.launch.template_source import Template
from ampkit.backends.cuda.nvrtc import SHARED, blocks_for, cached_columns, typed
from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.norms import register_softmax
from ampkit.kernels.shared.reduction import register_logsumexp

from ..pointwise import LAUNCHER
from ..reduction.reductions import fits, reduced_with_axes

register_logsumexp(LAUNCHER, reduced_with_axes, fits)


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


@lru_cache(256)
def template(backward: bool, logarithm: bool, shape: tuple[int, int], threads: int) -> Template:
    """The kernel for chains. shape: as of `_shape`; threads: of a block."""
    how = ", ".join(map(str, ("true" if logarithm else "false", *shape)))
    name, own = "softmax_backward" if backward else "softmax", "long long rows, long long cols, long long cached"
    call = f"rows_{name}<{how}>({{loads}}, {{store}}, rows, cols, cached)"
    return Template(f"log_{name}" if logarithm else name, "softmax", call, own, str(threads), shape[0])


def _launch(
    backward: bool, logarithm: bool, stored: DType, answered: DType, loads: tuple[Array, ...], out: Array
) -> None:
    """Launch the kernel of inputs of `stored` and outputs of `answered`, or that of its gradient."""
    cols, column_bytes = out.shape[-1], sum(each.dtype.itemsize for each in loads)  # of a column in shared memory
    rows, shape = out.size // cols, _shape(cols, *loads, out)
    cached = 0 if shape[1] else cached_columns(out, cols, column_bytes)
    blocks, threads = _grid(rows, cols, shape[1], cached * column_bytes)
    config, made = Grid(blocks, threads, cached, cached * column_bytes), template(backward, logarithm, shape, threads)
    entry = typed(made.name + ("" if backward else "_forward"), stored, answered, *shape)
    title, numbers = "LogSoftmax" if logarithm else "Softmax", (np.int64(rows), np.int64(cols), np.int64(cached))
    arrays = loads, (), out, ()
    TemplateCall(title, backward, "nn/softmax", entry, *arrays, numbers, cols, config, made).launch()


def _normalized(input: Array, dim: int, logarithm: bool, dtype: DType) -> Array:
    out = backends.backend_of(input).empty(input.shape, dtype)
    _launch(False, logarithm, input.dtype, dtype, (contiguous(input),), out)
    return out


def _gradient(dy: Array, out: Array, dim: int, logarithm: bool, dtype: DType) -> Array:
    dx = backends.backend_of(dy).empty(dy.shape, dtype)
    _launch(True, logarithm, dtype, out.dtype, (contiguous(dy), contiguous(out)), dx)
    return dx


def _readable(dy: Array, saved: Saved, needs: Any, dim: int, dtype: Any) -> bool:
    known = dy.dtype == saved.out.dtype and supports_dtypes(needs[0], dy.dtype)
    return known and _supports_rows(dy, dim) and _supports_rows(saved.out, dim)


register_softmax(LAUNCHER, _normalized, _gradient, _supports_rows, _readable, supports_dtypes, True)

"""Kernels of softmax and log_softmax: along the last axis of contiguous arrays, a warp or a block per row.

Rows are read from memory once: short ones lie in registers, longer ones in shared memory between two passes. Of a row
that does not fit there, the part that does is kept, and the rest read twice. logsumexp is two reductions and a map; its
backward makes both anew.
Not yet run on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import pairs, vectors
from ampkit.backends.cuda.launch import elementwise as maps
from ampkit.backends.cuda.launch.reduction import reduced
from ampkit.backends.cuda.nvrtc import C_NAMES, MOST, SHARED, STORED, blocks_for, columns_kept, launch, typed
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.softmax import log_softmax, logsumexp, softmax

from ..pointwise.registration import back_fits, fits

Array = Any
WARPS = 4  # rows of a block, where a warp has one each


def _rows(array: Array, dim: int) -> bool:
    last = array.ndim > 0 and dim in (-1, array.ndim - 1)
    return last and array.dtype in STORED and bool(array.flags.c_contiguous) and 0 < array.size <= MOST


def _shape(cols: int, *arrays: Array) -> tuple[int, int]:
    """How many values of a row are accessed at once, and how often a lane of its warp does so; 0: it has a block."""
    at_once = vectors(cols, *arrays)
    for often in (1, 4) if at_once == 8 else (4,):
        if cols <= 32 * at_once * often:
            return at_once, often
    return at_once, 0


def _entry(name: str, stored: DType, answered: DType, shape: tuple[int, int]) -> str:
    return typed(name, C_NAMES[stored], C_NAMES[answered], *map(str, shape))


def _grid(rows: int, cols: int, often: int, shared: int) -> tuple[int, int]:
    """Blocks and threads: WARPS rows a block, or a block a row, of more threads where a multiprocessor holds few."""
    if often:
        return blocks_for(rows, WARPS), 32 * WARPS
    return rows, 128 if cols <= 1024 else 512 if shared <= SHARED else 1024


def _launch(
    name: str, stored: DType, answered: DType, shape: tuple[int, int], cols: int, each: int, *args: Array
) -> None:
    """each: bytes that a block reads of a column, and keeps for its second pass."""
    rows, kept = args[0].size // cols, 0 if shape[1] else columns_kept(args[0], cols, each)
    shared, sizes = kept * each, (np.int64(rows), np.int64(cols), np.int64(kept))
    entry = _entry(name, stored, answered, shape)
    launch("nn/softmax", entry, *_grid(rows, cols, shape[1], shared), *args, *sizes, shared=shared)


def _forward(name: str, input: Array, dtype: DType) -> Array:
    out = backends.backend_of(input).empty(input.shape, dtype)
    cols = input.shape[-1]
    _launch(name, input.dtype, dtype, _shape(cols, input, out), cols, input.dtype.itemsize, input, out)
    return out


def _backward(name: str, dy: Array, out: Array, dtype: DType) -> Array:
    dx = backends.backend_of(dy).empty(dy.shape, dtype)
    cols = dy.shape[-1]
    _launch(name, dtype, out.dtype, _shape(cols, dy, out, dx), cols, 2 * out.dtype.itemsize, dy, out, dx)
    return dx


def _register(op: Any, name: str) -> None:
    def forward(input: Array, dim: int, dtype: DType) -> Any:
        if not pairs(input.dtype, dtype):
            return NotImplemented
        out = _forward(f"{name}_forward", input, dtype)
        return out, Saved(out=out)

    def back_fits(dy: Array, saved: Saved, needs: Any, dim: int, dtype: Any) -> bool:
        known = dy.dtype == saved.out.dtype and pairs(needs[0], dy.dtype)
        return known and _rows(dy, dim) and _rows(saved.out, dim)

    def backward(dy: Array, saved: Saved, needs: Any, dim: int, dtype: Any) -> Any:
        return _backward(f"{name}_backward", dy, saved.out, needs[0])

    op.on("cuda", when=lambda input, dim, dtype: _rows(input, dim))(forward)
    op.on_backward("cuda", when=back_fits)(backward)


_register(softmax, "softmax")
_register(log_softmax, "log_softmax")


def _exponentials(input: Array, dim: Any, keepdim: bool) -> tuple[Any, Any]:
    """The sum of exp(input - largest) over `dim`, and the largest; NotImplemented in its place."""
    most = reduced("Largest", input, dim, keepdim, float32)
    return (most if most is NotImplemented else reduced("AddExps", input, dim, keepdim, float32, centre=most)), most


@logsumexp.on("cuda", when=fits)
def logsumexp_cuda(input: Array, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    total, most = _exponentials(input, dim, keepdim)
    if total is NotImplemented:
        return NotImplemented
    out = maps.forward("LogSumExp", (total, most), dtype)
    return out if out is NotImplemented else (out, Saved(input=input))


@logsumexp.on_backward("cuda", when=back_fits)
def logsumexp_backward_cuda(dy: Array, saved: Any, needs: Any, dim: Any, keepdim: bool) -> Any:
    total, most = _exponentials(saved.input, dim, True)
    if total is NotImplemented:
        return NotImplemented
    return maps.backward("LogSumExp", dy.reshape(total.shape), (saved.input, most, total), needs)

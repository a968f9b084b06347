"""Kernels of what puts arrays side by side: a launch for up to 16 of them, whose addresses travel with it.

The result lies in memory as the pieces do, also channels-last. Pieces with gaps are copied one by one.
Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch.row_copy import WORDS
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, blocks_for, launch, typed
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.shape import join_split

Array = Any
PIECES = 16
BLOCK, BLOCKS = 256, 2048
_TABLE = np.dtype([(name, np.int64, PIECES) for name in ("from", "start", "length")])


def joined(arrays: Sequence[Array], dim: int) -> Array:
    """The arrays, of one dtype, side by side along `dim`."""
    dim %= arrays[0].ndim
    order = _order(arrays)
    arrays, at = [array.transpose(tuple(order)) for array in arrays], order.index(dim)
    shape = list(arrays[0].shape)
    shape[at] = sum(array.shape[at] for array in arrays)
    out = backends.backend_of(arrays[0]).empty(tuple(shape), arrays[0].dtype)
    _fill(out, arrays, at)
    return out.transpose(tuple([order.index(i) for i in range(len(order))]))


def _order(arrays: Sequence[Array]) -> list[int]:
    """The axes in the order in which all arrays have them in memory; as they are where there is none."""
    plain = list(range(arrays[0].ndim))
    longest = max(arrays, key=lambda array: array.size)
    order = sorted(plain, key=lambda i: -longest.strides[i] if longest.shape[i] > 1 else -inf)
    for found in (plain, order):
        if all(array.transpose(tuple(found)).flags.c_contiguous for array in arrays):
            return found
    return plain


def _fill(out: Array, arrays: Sequence[Array], at: int) -> None:
    inner = out.itemsize * prod(out.shape[at + 1 :])
    start, whole = 0, []
    for array in arrays:
        end = start + array.shape[at]
        if array.size and array.flags.c_contiguous:
            whole.append((array, start * inner, array.shape[at] * inner))
        elif array.size:
            out[(slice(None),) * at + (slice(start, end),)] = array
        start = end
    for first in range(0, len(whole), PIECES):
        _copy(out, prod(out.shape[:at]), start * inner, whole[first : first + PIECES])


def _copy(out: Array, rows: int, width: int, pieces: list[tuple[Array, int, int]]) -> None:
    """Copy (array, where it begins in a row, how long it is there), in bytes, to rows of `width` bytes."""
    size = _word(width, out.data.ptr, *(n for array, *place in pieces for n in (array.data.ptr, *place)))
    table = np.zeros(1, _TABLE)
    for i, (array, start, length) in enumerate(pieces):
        table["from"][0, i], table["start"][0, i], table["length"][0, i] = array.data.ptr, start // size, length // size
    most = rows * max(length for _, _, length in pieces) // size
    grid = min(blocks_for(most, BLOCK), BLOCKS), len(pieces)
    launch(
        "shape/join_split",
        typed("concatenate", WORDS[size]),
        grid,
        BLOCK,
        out,
        table,
        np.int32(rows),
        np.int64(width // size),
    )


def _word(*places: int) -> int:
    """The most bytes, up to 16, that all places are multiples of."""
    return next(size for size in WORDS if not any(place % size for place in places))


def _alike(arrays: Sequence[Array]) -> bool:
    first = arrays[0].dtype
    same = all(array.dtype == first for array in arrays)
    return same and 0 < sum(array.size for array in arrays) * first.itemsize <= MAX_ELEMENTS


@join_split.cat_.on("cuda", when=lambda tensors, dim: _alike(tensors))
def cat_cuda(tensors: Sequence[Array], dim: int, *, dtype: DType) -> Any:
    return joined(tensors, dim), Saved(lengths=tuple([t.shape[dim] for t in tensors]))


@join_split.stack_.on("cuda", when=lambda tensors, dim: _alike(tensors))
def stack_cuda(tensors: Sequence[Array], dim: int, *, dtype: DType) -> Any:
    return joined([np.expand_dims(t, dim) for t in tensors], dim), Saved()


def _pieces(dy: Any, *args: Any, **params: Any) -> bool:
    return type(dy) is tuple and _alike(dy)


@join_split.split_.on_backward("cuda", when=_pieces)
def split_backward_cuda(dy: Any, saved: Saved, needs: Any, ends: Any, dim: int) -> Array:
    return joined(dy, dim)


@join_split.unbind_.on_backward("cuda", when=_pieces)
def unbind_backward_cuda(dy: Any, saved: Saved, needs: Any, dim: int) -> Array:
    return joined([np.expand_dims(piece, dim) for piece in dy], dim)

"""CUDA kernels of cat, stack and the backwards of split and unbind: one launch concatenates up to 16 arrays.

The result has the memory layout of the pieces, channels-last included. Non-contiguous pieces are copied one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch.row_copy import WORDS
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, blocks_for, launch, typed
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array
from ampkit.kernels.shared.shape import register_join_split

PIECES = 16  # per launch; their addresses are a kernel argument
BLOCK, BLOCKS = 256, 2048
_TABLE = np.dtype([(name, np.int64, PIECES) for name in ("from", "start", "length")])


def concatenated(arrays: Sequence[Array], dim: int) -> Array:
    """Concatenate arrays of one dtype along `dim`."""
    dim %= arrays[0].ndim
    order = _order(arrays)
    arrays, at = [array.transpose(tuple(order)) for array in arrays], order.index(dim)
    shape = list(arrays[0].shape)
    shape[at] = sum(array.shape[at] for array in arrays)
    out = queue.held.add_cat(arrays, at, _fill) if queue.opened and queue.opens("cuda") else None
    if out is None:
        out = backends.backend_of(arrays[0]).empty(tuple(shape), arrays[0].dtype)
        _fill(out, arrays, at)
    return out.transpose(tuple([order.index(i) for i in range(len(order))]))


def rejoined(pieces: Sequence[Array], dim: int) -> Array:
    """Concatenate arrays of one dtype along `dim`, which nobody writes to any more: where they lie side by side in
    memory, as gradients do that were written as parts of one array, the result is that array."""
    first, at = pieces[0], dim % pieces[0].ndim
    steps = list(first.strides)
    if first.shape[at] == 1 and len(pieces) > 1:
        steps[at] = pieces[1].data.ptr - first.data.ptr
    end = first.data.ptr
    for piece in pieces:
        near = piece.data.mem is first.data.mem and piece.data.ptr == end and piece.size
        like = zip(piece.shape, piece.strides, steps, strict=True)
        if not near or any(step != want for n, step, want in like if n > 1):
            return concatenated(pieces, dim)
        end += piece.shape[at] * steps[at]
    shape = list(first.shape)
    shape[at] = sum([piece.shape[at] for piece in pieces])
    whole: Array = type(first)(tuple(shape), first.dtype, first.data, tuple(steps))
    return whole


def _order(arrays: Sequence[Array]) -> list[int]:
    """The axes in the memory order that all arrays share; row-major order where they share none."""
    plain = list(range(arrays[0].ndim))
    longest = max(arrays, key=lambda array: array.size)
    order = sorted(plain, key=lambda i: -longest.strides[i] if longest.shape[i] > 1 else -inf)
    for candidate in (plain, order):
        if all(array.transpose(tuple(candidate)).flags.c_contiguous for array in arrays):
            return candidate
    return plain


def _fill(out: Array, arrays: Sequence[Array], at: int) -> None:
    """Copy `arrays` into contiguous `out`, one after the other along axis `at`."""
    inner = out.itemsize * prod(out.shape[at + 1 :])
    start, contiguous = 0, []
    for array in arrays:
        end = start + array.shape[at]
        if array.size and array.flags.c_contiguous:
            contiguous.append((array, start * inner, array.shape[at] * inner))
        elif array.size:
            out[(slice(None),) * at + (slice(start, end),)] = array
        start = end
    for first in range(0, len(contiguous), PIECES):
        _copy(out, prod(out.shape[:at]), start * inner, contiguous[first : first + PIECES])


def _copy(out: Array, rows: int, width: int, pieces: list[tuple[Array, int, int]]) -> None:
    """Copy pieces (array, offset in a row, length in a row), in bytes, to `rows` rows of `width` bytes."""
    size = _word(width, out.data.ptr, *(n for array, *span in pieces for n in (array.data.ptr, *span)))
    table = np.zeros(1, _TABLE)
    for i, (array, start, length) in enumerate(pieces):
        table["from"][0, i], table["start"][0, i], table["length"][0, i] = array.data.ptr, start // size, length // size
    words = rows * max(length for _, _, length in pieces) // size
    grid = min(blocks_for(words, BLOCK), BLOCKS), len(pieces)
    args = out, table, np.int32(rows), np.int64(width // size)
    launch("shape/join_split", typed("concatenate", WORDS[size]), grid, BLOCK, *args)


def _word(*offsets: int) -> int:
    """The largest word size in bytes, up to 16, that divides all offsets."""
    return next(size for size in WORDS if not any(offset % size for offset in offsets))


def _supports(arrays: Sequence[Array]) -> bool:
    first = arrays[0].dtype
    same = all(array.dtype == first for array in arrays)
    return same and 0 < sum(array.size for array in arrays) * first.itemsize <= MAX_ELEMENTS


register_join_split("cuda", concatenated, _supports, rejoined, launches=True)

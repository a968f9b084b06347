"""Diagonals: read from a matrix, or written to one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_addressable, normalize_axis
from ..indexing.getitem import put_into_zeros
from ..reduction.reductions import sum
from .join_split import cat
from .padding import pad
from .view import atleast_2d, flatten, movedim

__all__ = ["block_diag", "diag", "diag_embed", "diagflat", "diagonal", "trace"]


@op(cast=Cast.KEEP, moves=True, view=True)
def diagonal_(input: Array, offset, dim1, dim2):
    """The elements [i, i + offset] of dim1 and dim2, as a last axis."""
    out = np.diagonal(input, offset, dim1, dim2)
    if isinstance(out, np.ndarray):  # NumPy's diagonal is read-only
        out.flags.writeable = input.flags.writeable
    return out, Saved(shape=input.shape)


@diagonal_.backward
def diagonal_backward(dy, saved, needs, offset, dim1, dim2):
    rest = [n for i, n in enumerate(saved.shape) if i not in (dim1, dim2)]
    rows, columns = saved.shape[dim1], saved.shape[dim2]
    moved = apply(
        put_into_zeros, np.moveaxis(dy, -1, 0), _diagonal_indices(rows, columns, offset), (rows, columns, *rest)
    )
    return np.moveaxis(moved, (0, 1), (dim1, dim2))


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The elements [i, i + offset] of dim1 and dim2, as a last axis; shares memory.

    Raises ShapeError for fewer than two axes and for dim1 = dim2, RangeError for an axis out of range.
    """
    if input.ndim < 2 or normalize_axis("diagonal", dim1, input.ndim) == normalize_axis("diagonal", dim2, input.ndim):
        raise ShapeError("diagonal", "two different axes", f"shape {tuple(input.shape)}, dim1={dim1}, dim2={dim2}")
    return diagonal_(
        input, offset, normalize_axis("diagonal", dim1, input.ndim), normalize_axis("diagonal", dim2, input.ndim)
    )


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices of zeros with the last axis of input on diagonal `offset`: [.., n] -> [.., m, m]."""
    if not input.ndim:
        raise ShapeError("diag_embed", "at least one axis", "shape ()")
    size = input.shape[-1] + abs(offset)
    check_addressable("diag_embed", (size, size))
    indices = _diagonal_indices(size, size, offset)
    made = put_into_zeros(movedim(input, -1, 0), indices, (size, size, *input.shape[:-1]))
    return movedim(made, (0, 1), (dim1, dim2))


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A vector as the diagonal of a matrix, or the diagonal of a matrix as a vector. ShapeError for other shapes."""
    if input.ndim not in (1, 2):
        raise ShapeError("diag", "one axis or two", f"shape {tuple(input.shape)}")
    return diag_embed(input, diagonal) if input.ndim == 1 else _diagonal(input, diagonal)


_diagonal = diagonal  # `diag` has a parameter of that name


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix, in float32 and rounded once. Raises ShapeError for other shapes."""
    if input.ndim != 2:
        raise ShapeError("trace", "a matrix", f"shape {tuple(input.shape)}")
    return sum(diagonal(input))


def _diagonal_indices(rows: int, columns: int, offset: int) -> tuple[Any, Any]:
    first = np.arange(max(0, min(rows + min(offset, 0), columns - max(offset, 0))))
    return first - min(offset, 0), first + max(offset, 0)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix of zeros with the elements of input, in row-major order, on diagonal `offset`."""
    return diag(flatten(input), offset)


def block_diag(*tensors: Any) -> Tensor:
    """A block-diagonal matrix; vectors count as rows, numbers as [1, 1]. Raises ShapeError for more than two axes."""
    if not all(isinstance(t, Tensor) and t.ndim < 3 for t in tensors) or not tensors:
        raise ShapeError("block_diag", "matrices, vectors or numbers, as Tensors", f"{len(tensors)} others or none")
    blocks = [atleast_2d(t) for t in tensors]
    width, rows, before = int(np.sum([b.shape[1] for b in blocks])), [], 0
    for block in blocks:
        rows.append(pad(block, (before, width - before - block.shape[1])))
        before += block.shape[1]
    return cat(rows, 0)

"""Diagonals: taken from matrices, made into matrices, summed; and the places of triangles."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base import dtypes
from ampkit.base.errors import RangeError, ShapeError
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..creation.factories import tensor
from ..indexing.subscript import put_item
from ..reduction.reductions import sum
from .axes import addressable, axis
from .view import movedim

__all__ = ["diag", "diag_embed", "diagonal", "trace", "tril_indices", "triu_indices"]


@op(cast=Cast.KEEP, moves=True, view=True)
def diagonal_(input: Array, offset, dim1, dim2):
    """The elements [i, i + offset] of dim1 and dim2, as a last axis."""
    out = np.diagonal(input, offset, dim1, dim2)
    if isinstance(out, np.ndarray):  # NumPy's is read-only for reasons of its own past
        out.flags.writeable = input.flags.writeable
    return out, Saved(shape=input.shape)


@diagonal_.backward
def diagonal_backward(dy, saved, needs, offset, dim1, dim2):
    rest = [n for i, n in enumerate(saved.shape) if i not in (dim1, dim2)]
    rows, columns = saved.shape[dim1], saved.shape[dim2]
    moved = apply(put_item, np.moveaxis(dy, -1, 0), _places(rows, columns, offset), (rows, columns, *rest))
    return np.moveaxis(moved, (0, 1), (dim1, dim2))


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The elements [i, i + offset] of dim1 and dim2, as a last axis; shares memory.

    Raises ShapeError for fewer than two axes and for dim1 = dim2, RangeError for an axis that is not there.
    """
    if input.ndim < 2 or axis("diagonal", dim1, input.ndim) == axis("diagonal", dim2, input.ndim):
        got = f"shape {tuple(input.shape)}, dim1={dim1}, dim2={dim2}"
        raise ShapeError("diagonal", "two different axes", got)
    return diagonal_(input, offset, axis("diagonal", dim1, input.ndim), axis("diagonal", dim2, input.ndim))


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices of zeros with the last axis of input on the diagonal numbered `offset`: [.., n] -> [.., m, m]."""
    if not input.ndim:
        raise ShapeError("diag_embed", "at least one axis", "shape ()")
    size = input.shape[-1] + abs(offset)
    addressable("diag_embed", (size, size))
    places = _places(size, size, offset)
    made = put_item(movedim(input, -1, 0), places, (size, size, *input.shape[:-1]))
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


def _places(rows: int, columns: int, offset: int) -> tuple[Any, Any]:
    first = np.arange(max(0, min(rows + min(offset, 0), columns - max(offset, 0))))
    return first - min(offset, 0), first + max(offset, 0)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = dtypes.int64, device: Any = "cpu", layout: CompatArg = None
) -> Tensor:
    """The places of the lower triangle of a matrix [row, col], in row-major order: [2, n]; see `tril`."""
    return _indices("tril_indices", np.tril_indices, row, col, offset, dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = dtypes.int64, device: Any = "cpu", layout: CompatArg = None
) -> Tensor:
    """The places of the upper triangle of a matrix [row, col], in row-major order: [2, n]; see `triu`."""
    return _indices("triu_indices", np.triu_indices, row, col, offset, dtype, device)


def _indices(where: str, find: Any, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    if row < 0 or col < 0:
        raise RangeError(where, "sizes from 0", f"{row} and {col}")
    addressable(where, (row, col))
    offset = max(-row, min(offset, col))  # beyond, nothing changes
    return tensor(np.stack(find(row, offset, col)), dtype, device)

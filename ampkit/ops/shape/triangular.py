"""Triangles and diagonals of matrices: tril, triu and their indices, diagonal, diag, trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.base.dtypes import int64, is_float
from ampkit.base.errors import RangeError, ShapeError
from ampkit.core.autograd.traced_array import apply, plain
from ampkit.core.op import Array, Op, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_addressable, normalize_axis
from ..indexing.getitem import put_into_zeros
from ..named import named
from ..pointwise.selection import select_or_zero
from ..reduction.reductions import sum
from .join_split import cat
from .padding import pad
from .view import atleast_2d, flatten, movedim

__all__ = [
    "block_diag", "diag", "diag_embed", "diagflat", "diagonal", "trace", "tril", "tril_indices", "triu", "triu_indices",
]  # fmt: skip


def _lower_mask(x: Any, diagonal: int) -> Any:
    """The mask [rows, columns] of the elements on and below `diagonal`, as np.tri, on the device of x."""
    rows, columns = x.shape[-2:]
    return np.arange(columns, like=x) - np.arange(rows, like=x)[:, None] <= diagonal


def _triangle(name: str, which: str, mask_of: Callable[[Any, int], Any]) -> Op:
    @op(cast=Cast.KEEP, moves=True)
    @named(name, f"The {which} diagonal `diagonal`.")
    def made(input: Array, diagonal: int = 0):
        mask = mask_of(input, diagonal)
        return select_or_zero(input, mask) if is_float(input.dtype) else input * mask.astype(input.dtype), Saved()

    @made.check
    def check(input, diagonal):
        if input.ndim < 2:
            raise ShapeError("tril and triu", "at least 2 axes", f"shape {tuple(input.shape)}")

    @made.backward
    @named(f"{name}_backward", "")
    def backward(dy, saved, needs, diagonal):
        return select_or_zero(dy, mask_of(plain(dy), diagonal))

    return made


tril = _triangle("tril", "lower triangles of the matrices [..., rows, columns]: zero above", _lower_mask)
triu = _triangle(
    "triu",
    "upper triangles of the matrices [..., rows, columns]: zero below",
    lambda x, diagonal: np.logical_not(_lower_mask(x, diagonal - 1)),
)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: Any = "cpu", layout: CompatArg = None
) -> Tensor:
    """The row and column indices of the lower triangle of [row, col], in row-major order: [2, n]; see `tril`."""
    return _triangle_indices("tril_indices", np.tril_indices, row, col, offset, dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: Any = "cpu", layout: CompatArg = None
) -> Tensor:
    """The row and column indices of the upper triangle of [row, col], in row-major order: [2, n]; see `triu`."""
    return _triangle_indices("triu_indices", np.triu_indices, row, col, offset, dtype, device)


def _triangle_indices(where: str, find: Any, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    if row < 0 or col < 0:
        raise RangeError(where, "sizes from 0", f"{row} and {col}")
    check_addressable(where, (row, col))
    offset = max(-row, min(offset, col))  # larger offsets change nothing
    return tensor(np.stack(find(row, offset, col)), dtype, device)


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

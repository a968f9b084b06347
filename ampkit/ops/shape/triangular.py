"""Triangles of matrices: tril, triu and their indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import int64, is_float
from ampkit.base.errors import RangeError, ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_factory import tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import check_addressable
from ..pointwise.selection import select_or_zero

__all__ = ["tril", "tril_indices", "triu", "triu_indices"]


def _lower_mask(x: Any, diagonal: int) -> Any:
    """The mask [rows, columns] of the elements on and below `diagonal`, as np.tri, on the device of x."""
    rows, columns = x.shape[-2:]
    return np.arange(columns, like=x) - np.arange(rows, like=x)[:, None] <= diagonal


@op(cast=Cast.KEEP, moves=True)
def tril(input: Array, diagonal: int = 0):
    """The lower triangles of the matrices [..., rows, columns]: zero above diagonal `diagonal`."""
    return _mask_triangle(input, _lower_mask(input, diagonal)), Saved()


@op(cast=Cast.KEEP, moves=True)
def triu(input: Array, diagonal: int = 0):
    """The upper triangles of the matrices [..., rows, columns]: zero below diagonal `diagonal`."""
    return _mask_triangle(input, np.logical_not(_lower_mask(input, diagonal - 1))), Saved()


def _mask_triangle(x: Any, mask: Any) -> Any:
    return select_or_zero(x, mask) if is_float(x.dtype) else x * mask.astype(x.dtype)


@tril.backward
def tril_backward(dy, saved, needs, diagonal):
    return select_or_zero(dy, _lower_mask(plain(dy), diagonal))


@triu.backward
def triu_backward(dy, saved, needs, diagonal):
    return select_or_zero(dy, np.logical_not(_lower_mask(plain(dy), diagonal - 1)))


def tril_check(input, diagonal):
    if input.ndim < 2:
        raise ShapeError("tril and triu", "at least 2 axes", f"shape {tuple(input.shape)}")


tril.check(tril_check)
triu.check(tril_check)


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

"""The product of a sparse matrix and a dense one, by the sparse one's stored elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError, StateError
from ampkit.core.autograd.traced_array import TracedArray
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast

from ..argument_checks import check_index_range, check_integer_index
from ..indexing.deterministic_scatter import add_at

__all__: list[str] = []


@op(cast=Cast.LOW, integers="refuse")
def sparse_mm(input: Array, dense: Array, row: Index, column: Index, n: int, m: int):
    """The matrix [n, m] of elements `input` [k] at (row, column) times dense [m, K] -> [n, K].

    Products are exact in float32 and summed there, rounded once, as by `matmul`: the same category under a policy.
    """
    _need_first(input, dense)
    check_index_range("sparse_mm", row, n)
    check_index_range("sparse_mm", column, m)
    out = add_at(input[:, None] * np.take(dense, column, 0), (row,), (n, dense.shape[1]))
    return out, Saved(input=input, dense=dense, row=row, column=column)


def _need_first(*arrays: Any) -> None:
    if any(isinstance(array, TracedArray) for array in arrays):
        raise StateError("sparse_mm", "a first derivative", "a second one")


@sparse_mm.check
def sparse_mm_check(input, dense, row, column, n, m):
    for name, index in (("row", row), ("column", column)):
        check_integer_index("sparse_mm", index)
        if index.ndim != 1 or index.shape != input.shape:
            raise ShapeError("sparse_mm", f"{name} of shape {tuple(input.shape)}", f"{tuple(index.shape)}")
    if dense.ndim != 2 or dense.shape[0] != m:
        raise ShapeError("sparse_mm", f"dense [{m}, K]", f"shape {tuple(dense.shape)}")


@sparse_mm.backward(input="dense", dense="input")
def sparse_mm_backward(dy, saved, needs, n, m):
    _need_first(dy, *vars(saved).values())
    row, column = saved.row, saved.column
    along = np.take(dy, row, 0)
    by_values: Any = None
    if needs[0] is not None:
        by_values = (along * np.take(saved.dense, column, 0)).sum(-1)
    by_dense: Any = None
    if needs[1] is not None:
        by_dense = add_at(saved.input[:, None] * along, (column,), (m, dy.shape[1]))
    return by_values, by_dense, None, None

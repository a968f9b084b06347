"""Sparse tensors whose stored elements are chosen: of an axis, of two tensors at once, of diagonals, of a product."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import int64
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.base.memory_format import sparse_coo
from ampkit.core.tensor import Tensor

from ..argument_checks import check_index_range, normalize_axis
from ..creation.constants import as_tensor
from ..indexing.index_select import index_select as dense_index_select
from ..pointwise.conversion import to
from .tensor import HANDLERS, SparseTensor

__all__: list[str] = []  # `ampkit.sparse` has the functions


def index_select(input: SparseTensor, dim: int, index: Tensor) -> SparseTensor:
    """The slices at `index` [k] of an axis, in that order, each as often as it is there; sparse_coo.

    Raises RangeError for an index out of range.
    """
    axis = normalize_axis("index_select", dim, input.ndim)
    wanted = to(as_tensor(index), int64).numpy(force=True).reshape(-1)
    check_index_range("index_select", wanted, input.shape[axis])
    held = input._indices_held.numpy(force=True)
    # For each wanted slice its stored elements, which lie together once they are sorted by the axis.
    order = np.argsort(held[axis], kind="stable")
    first, behind = (np.searchsorted(held[axis][order], wanted, side) for side in ("left", "right"))
    counts = behind - first
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    taken = order[starts + np.arange(counts.sum())]
    indices = held[:, taken]
    indices[axis] = np.repeat(np.arange(len(wanted)), counts)
    shape = [len(wanted) if d == axis else n for d, n in enumerate(input.shape)]
    return SparseTensor(_on(indices, input), _at(input, taken), shape, sparse_coo)


def intersection(input: SparseTensor, other: SparseTensor) -> SparseTensor:
    """input * other, stored where both store an element."""
    if input.shape != other.shape:
        raise ShapeError("mul", "sparse tensors of one shape", f"{tuple(input.shape)} and {tuple(other.shape)}")
    layout, one, two = input.layout, input.coalesce(), other.coalesce()
    _, left, right = np.intersect1d(_flat(one), _flat(two), assume_unique=True, return_indices=True)
    indices = dense_index_select(one._indices_held, 1, _on(left, one))
    found = SparseTensor(indices, _at(one, left) * _at(two, right), input.shape, sparse_coo, True)
    return found.to_sparse(layout)


def sampled_addmm(
    input: SparseTensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0, out: Any = None
) -> SparseTensor:
    """beta * input + alpha * (mat1 @ mat2) at the elements that `input` [n, m] stores; in its layout.

    mat1 [n, k], mat2 [k, m]. Raises ShapeError for others, DTypeError for an input that is not sparse.
    """
    if not isinstance(input, SparseTensor) or out is not None:
        raise DTypeError("sampled_addmm", "a sparse input, and no out", type(input if out is None else out).__name__)
    sizes = (*mat1.shape[:1], *mat2.shape[1:])
    if mat1.ndim != 2 or mat2.ndim != 2 or sizes != tuple(input.shape) or mat1.shape[1] != mat2.shape[0]:
        got = f"{tuple(mat1.shape)} and {tuple(mat2.shape)}"
        raise ShapeError("sampled_addmm", f"matrices whose product is {tuple(input.shape)}", got)
    row, column = input._indices_held[0], input._indices_held[1]
    products = dense_index_select(mat1, 0, row) * dense_index_select(mat2, 1, column).t()
    return input._with(beta * input._held + alpha * products.sum(-1))


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Any, layout: str | None = None) -> SparseTensor:
    """A matrix with these diagonals: element j of diagonals[i] is in column j, and in row j - offsets[i].

    diagonals [k, n], or [n] of one; offsets [k] int64, each once. layout: by default sparse_coo.
    Raises ArgumentError for an offset that is there twice, ShapeError for shapes that do not fit.
    """
    rows_of = diagonals if diagonals.ndim == 2 else diagonals.unsqueeze(0)
    shifts = as_tensor(offsets).numpy(force=True).reshape(-1)
    if rows_of.ndim != 2 or len(shifts) != rows_of.shape[0] or len(tuple(shape)) != 2:
        got = f"{tuple(diagonals.shape)}, {tuple(shifts.shape)} and {tuple(shape)}"
        raise ShapeError("spdiags", "diagonals [k, n], offsets [k] and a shape of 2 axes", got)
    if len(set(shifts.tolist())) != len(shifts):
        raise ArgumentError("spdiags", "each offset once", f"{shifts.tolist()}")
    column = np.broadcast_to(np.arange(rows_of.shape[1]), rows_of.shape)
    row = column - shifts[:, None]
    inside = (row >= 0) & (row < shape[0]) & (column < shape[1])
    indices = np.stack([row[inside], column[inside]]).astype(np.int64)
    values = dense_index_select(rows_of.reshape(-1), 0, _on(np.flatnonzero(inside), rows_of))
    return SparseTensor(_on(indices, rows_of), values, tuple(shape), sparse_coo).to_sparse(layout)


def _flat(input: SparseTensor) -> Any:
    return np.ravel_multi_index(tuple(input._indices_held.numpy(force=True)), tuple(input.shape)).reshape(-1)


def _on(indices: Any, like: Any) -> Tensor:
    return Tensor(np.asarray(indices, np.int64)).to(like.device)


def _at(input: SparseTensor, places: Any) -> Tensor:
    return dense_index_select(input._held, 0, _on(places, input))


HANDLERS["index_select"] = index_select
setattr(SparseTensor, "index_select", index_select)  # noqa: B010 - defined behind the class

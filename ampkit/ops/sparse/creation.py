"""Sparse tensors from indices and values, and from dense tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import int64
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.base.memory_format import sparse_coo, sparse_csr
from ampkit.core.tensor import Tensor

from ..argument_checks import check_index_range
from ..creation.constants import as_tensor
from ..indexing.getitem import getitem
from ..indexing.search import nonzero
from ..pointwise.conversion import to
from ..shape.join_split import stack
from .tensor import SparseTensor

__all__ = ["sparse_coo_tensor", "sparse_csr_tensor", "to_sparse", "to_sparse_coo", "to_sparse_csr"]


def sparse_coo_tensor(
    indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """A sparse tensor of `values` [k] at `indices` [d, k]; size: by default the least that holds them.

    Raises RangeError for indices outside of the size, ShapeError for values that are not one per index.
    """
    held = as_tensor(values, dtype=dtype, device=device)
    index = to(as_tensor(indices, device=held.device), int64).detach()
    if index.ndim != 2 or held.ndim != 1 or index.shape[1] != held.shape[0]:
        got = f"{tuple(index.shape)} and {tuple(held.shape)}"
        raise ShapeError("sparse_coo_tensor", "indices [d, k] and values [k]", got)
    host = index.numpy(force=True)
    if size is None:
        if not host.shape[1]:
            raise ArgumentError("sparse_coo_tensor", "a size, where there are no indices", "None")
        size = tuple((host.max(1) + 1).tolist())
    shape = tuple(int(n) for n in size)
    if len(shape) != index.shape[0]:
        raise ShapeError("sparse_coo_tensor", f"a size of {index.shape[0]} axes", f"{shape}")
    for axis, n in enumerate(shape):
        check_index_range("sparse_coo_tensor", host[axis], n)
    return SparseTensor(index, _leaf(held, requires_grad), shape, sparse_coo, bool(is_coalesced))


def _leaf(values: Tensor, requires_grad: bool) -> Tensor:
    return values.detach().requires_grad_() if requires_grad and not values.requires_grad else values


def sparse_csr_tensor(
    crow_indices: Any,
    col_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """A matrix of `values` [k]: those of row i from crow_indices[i] to crow_indices[i + 1], at columns col_indices.

    Raises RangeError and ArgumentError for indices that are out of range or do not rise.
    """
    starts = to(as_tensor(crow_indices), int64).numpy(force=True)
    columns = to(as_tensor(col_indices), int64)
    if starts.ndim != 1 or not len(starts) or starts[0] != 0 or (np.diff(starts) < 0).any():
        raise ArgumentError(
            "sparse_csr_tensor", "crow_indices [n + 1] that begin with 0 and rise", f"{starts.tolist()}"
        )
    if columns.ndim != 1 or starts[-1] != columns.shape[0]:
        got = f"{int(starts[-1])} and shape {tuple(columns.shape)}"
        raise ShapeError("sparse_csr_tensor", "as many columns as the last of crow_indices", got)
    rows = Tensor(np.repeat(np.arange(len(starts) - 1), np.diff(starts)).astype(np.int64)).to(columns.device)
    if size is None:
        size = (len(starts) - 1, int(columns.max().item()) + 1 if columns.numel() else 0)
    if len(size) != 2 or size[0] != len(starts) - 1:
        raise ShapeError("sparse_csr_tensor", f"a size [{len(starts) - 1}, M]", f"{tuple(size)}")
    found = sparse_coo_tensor(
        stack([rows, columns]), values, size, dtype=dtype, device=device, requires_grad=requires_grad
    )
    return SparseTensor(found._indices_held, found._held, found.shape, sparse_csr, True)


def to_sparse(input: Tensor, layout: str | None = None) -> SparseTensor:
    """The elements of a dense tensor that are not 0, in a layout, by default sparse_coo; on the tape."""
    if not input.ndim:
        raise ShapeError("to_sparse", "a tensor with axes", "a number")
    places = nonzero(input.detach(), as_tuple=True)
    return SparseTensor(stack(list(places)), getitem(input, places), input.shape, sparse_coo, True).to_sparse(layout)


def to_sparse_coo(input: Tensor) -> SparseTensor:
    """`to_sparse` in the layout sparse_coo."""
    return to_sparse(input)


def to_sparse_csr(input: Tensor) -> SparseTensor:
    """`to_sparse` of a matrix in the layout sparse_csr."""
    return to_sparse(input, sparse_csr)

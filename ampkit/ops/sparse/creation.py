"""Sparse tensors from indices and values, and from dense tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.dtypes import int64
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.base.memory_format import sparse_coo, sparse_csc, sparse_csr
from ampkit.core.tensor import Tensor

from ..argument_checks import check_index_range
from ..creation.constants import as_tensor
from ..indexing.getitem import getitem
from ..indexing.search import nonzero
from ..pointwise.conversion import to
from ..shape.join_split import stack
from .tensor import COMPRESSED, SparseTensor

__all__ = [
    "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor", "to_sparse", "to_sparse_coo", "to_sparse_csc",
    "to_sparse_csr",
]  # fmt: skip


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
    """A sparse tensor of `values` [k, ...] at `indices` [d, k]; size: by default the least that holds them.

    Its first d axes are sparse, those of each value dense.
    Raises RangeError for indices outside of the size, ShapeError for values that are not one per index.
    """
    held = as_tensor(values, dtype=dtype, device=device)
    index = to(as_tensor(indices, device=held.device), int64).detach()
    if index.ndim != 2 or not held.ndim or index.shape[1] != held.shape[0]:
        got = f"{tuple(index.shape)} and {tuple(held.shape)}"
        raise ShapeError("sparse_coo_tensor", "indices [d, k] and values [k, ...]", got)
    host, dense = index.numpy(force=True), tuple(held.shape[1:])
    if size is None:
        if not host.shape[1]:
            raise ArgumentError("sparse_coo_tensor", "a size, where there are no indices", "None")
        size = (*(host.max(1) + 1).tolist(), *dense)
    shape = tuple(int(n) for n in size)
    if len(shape) != len(host) + len(dense) or shape[len(host) :] != dense:
        needs = f"a size of {len(host) + len(dense)} axes" + (f" that ends with {dense}" if dense else "")
        raise ShapeError("sparse_coo_tensor", needs, f"{shape}")
    for axis, n in enumerate(shape[: len(host)]):
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
    options: dict[str, Any] = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
    return _compressed(sparse_csr, crow_indices, col_indices, values, size, options)


def sparse_csc_tensor(
    ccol_indices: Any,
    row_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """A matrix of `values` [k]: those of column j from ccol_indices[j] to ccol_indices[j + 1], at rows row_indices.

    Raises RangeError and ArgumentError for indices that are out of range or do not rise.
    """
    options: dict[str, Any] = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
    return _compressed(sparse_csc, ccol_indices, row_indices, values, size, options)


def _compressed(layout: str, begins: Any, others: Any, values: Any, size: Any, options: dict[str, Any]) -> SparseTensor:
    # Of rows or columns: where each begins among the values, and the indices of these along the other axis.
    axis = COMPRESSED[layout]
    begin, other = (("crow", "col"), ("ccol", "row"))[axis]
    where = f"sparse_{'csr' if axis == 0 else 'csc'}_tensor"
    starts = to(as_tensor(begins), int64).numpy(force=True)
    along = to(as_tensor(others), int64)
    if starts.ndim != 1 or not len(starts) or starts[0] != 0 or (np.diff(starts) < 0).any():
        raise ArgumentError(where, f"{begin}_indices [n + 1] that begin with 0 and rise", f"{starts.tolist()}")
    if along.ndim != 1 or starts[-1] != along.shape[0]:
        got = f"{int(starts[-1])} and shape {tuple(along.shape)}"
        raise ShapeError(where, f"as many {other}_indices as the last of {begin}_indices", got)
    n = len(starts) - 1
    lines = Tensor(np.repeat(np.arange(n), np.diff(starts)).astype(np.int64)).to(along.device)
    if size is None:
        least = int(along.max().item()) + 1 if along.numel() else 0
        size = (n, least) if axis == 0 else (least, n)
    if len(size) != 2 or size[axis] != n:
        needs = f"[{n}, M]" if axis == 0 else f"[N, {n}]"
        raise ShapeError(where, f"a size {needs}", f"{tuple(size)}")
    found = sparse_coo_tensor(stack([lines, along] if axis == 0 else [along, lines]), values, size, **options)
    return SparseTensor(found._indices_held, found._held, found.shape, layout, True)


def to_sparse(
    input: Tensor,
    sparse_dim: int | str | None = None,
    *,
    layout: str | None = None,
    blocksize: Any = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """The elements of a dense tensor that are not 0, in a layout, by default sparse_coo; on the tape.

    sparse_dim, or dense_dim, which counts the others: how many axes, the first ones, are sparse in sparse_coo, by
    default all; a stored element then is a slice that is not 0 everywhere. A layout may take its place.
    Raises ArgumentError for a blocksize and for other numbers.
    """
    if isinstance(sparse_dim, str):
        layout, sparse_dim = sparse_dim, None
    count = sparse_dim if dense_dim is None else input.ndim - dense_dim
    hybrid = count is not None and count != input.ndim
    if blocksize is not None or (
        hybrid and (layout not in (None, sparse_coo) or not 0 < int(count or 0) <= input.ndim)
    ):
        got = f"{count} of {input.ndim}" if blocksize is None else f"blocksize {blocksize}"
        raise ArgumentError("to_sparse", "from 1 to all axes sparse, fewer than all in sparse_coo, and no blocks", got)
    if not input.ndim:
        stored = int(bool(input.detach() != 0))
        index = Tensor(np.zeros((0, stored), np.int64)).to(input.device)
        return SparseTensor(index, input.reshape(1)[:stored], (), sparse_coo, True)
    filled = input.detach() if not hybrid else (input.detach() != 0).flatten(int(count or 0)).any(-1)
    places = nonzero(filled, as_tuple=True)
    found = SparseTensor(stack(list(places)), getitem(input, places), input.shape, sparse_coo, True)
    return found.to_sparse(layout)


def to_sparse_coo(input: Tensor) -> SparseTensor:
    """`to_sparse` in the layout sparse_coo."""
    return to_sparse(input)


def to_sparse_csr(input: Tensor) -> SparseTensor:
    """`to_sparse` of a matrix in the layout sparse_csr."""
    return to_sparse(input, layout=sparse_csr)


def to_sparse_csc(input: Tensor) -> SparseTensor:
    """`to_sparse` of a matrix in the layout sparse_csc."""
    return to_sparse(input, layout=sparse_csc)

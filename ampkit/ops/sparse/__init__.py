"""Sparse tensors in PyTorch's layouts COO, CSR and CSC: `ampkit.sparse`.

adjacency = ampkit.sparse_coo_tensor(edges, weights, (n, n))
hidden = ampkit.sparse.mm(adjacency, features)
"""

from __future__ import annotations

from typing import Any

from ampkit.base.errors import ArgumentError
from ampkit.core.tensor import Tensor

from ..argument_checks import normalize_axis
from ..creation.constants import full, zeros
from ..indexing.index_select import index_add, index_select
from ..indexing.scatter_reduce import scatter_reduce
from .arithmetic import addmm as addmm
from .arithmetic import mm as mm
from .selection import sampled_addmm as sampled_addmm
from .selection import spdiags as spdiags
from .tensor import SparseTensor as SparseTensor

__all__ = ["SparseTensor", "addmm", "log_softmax", "mm", "sampled_addmm", "softmax", "spdiags", "sum"]


def sum(input: SparseTensor, dim: Any = None, dtype: Any = None) -> Any:
    """The sum of all elements, a Tensor, or over axes, sparse; dtype: that the elements are cast to before."""
    return (input if dtype is None else input.to(dtype)).sum(dim)


def softmax(input: SparseTensor, dim: int, *, dtype: Any = None) -> SparseTensor:
    """softmax along an axis of a matrix over the stored elements, as if the others were -inf. Sparse."""
    logs = log_softmax(input, dim, dtype=dtype)
    return logs._with(logs._held.exp())


def log_softmax(input: SparseTensor, dim: int, *, dtype: Any = None) -> SparseTensor:
    """log of `softmax`."""
    if input.ndim != 2:
        raise ArgumentError("sparse.softmax", "a matrix", f"shape {tuple(input.shape)}")
    found = (input if dtype is None else input.to(dtype)).coalesce()
    kept = 1 - normalize_axis("sparse.softmax", dim, 2)
    group, values, n = found._indices_held[kept], found._held, found.shape[kept]
    lowest = full((n,), float("-inf"), dtype=values.dtype, device=values.device)
    most = index_select(scatter_reduce(lowest, 0, group, values.detach(), "amax"), 0, group)
    away = values - most
    totals = index_add(zeros(n, dtype=values.dtype, device=values.device), 0, group, away.exp())
    return found._with(away - index_select(totals, 0, group).log())

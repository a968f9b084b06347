"""Coordinate grids and combinations: meshgrid, cartesian_prod, combinations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations as _combinations
from itertools import combinations_with_replacement as _with_replacement
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, check_choice
from ampkit.core.tensor import Tensor

from ..indexing.index_select import index_select
from .join_split import stack
from .view import broadcast_to, flatten, reshape

__all__ = ["cartesian_prod", "combinations", "meshgrid"]


def meshgrid(*tensors: Tensor | Sequence[Tensor], indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinate grids: vectors [n], [m], ... -> as many tensors [n, m, ...], which share the vectors' memory.

    indexing="xy" swaps the first two axes. Raises ShapeError for tensors of more than one axis.
    """
    vectors: Any = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    if not all(isinstance(t, Tensor) for t in vectors):
        raise DTypeError("meshgrid", "Tensors", "a list among them")
    check_choice("meshgrid", "indexing", indexing, "ij", "xy")
    if any(t.ndim > 1 for t in vectors):
        raise ShapeError("meshgrid", "vectors", ", ".join(str(tuple(t.shape)) for t in vectors))
    order = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        order[:2] = [1, 0]
    shape = [0] * len(vectors)
    for t, at in zip(vectors, order, strict=True):
        shape[at] = t.numel()
    rows = [
        reshape(t, *(-1 if i == at else 1 for i in range(len(vectors)))) for t, at in zip(vectors, order, strict=True)
    ]
    return tuple([broadcast_to(row, tuple(shape)) for row in rows])


def cartesian_prod(*tensors: Any) -> Tensor:
    """The Cartesian product of vectors, as rows: [n], [m] -> [n m, 2]; one vector is returned unchanged."""
    vectors = _check_vectors("cartesian_prod", tensors)
    return vectors[0] if len(vectors) == 1 else stack([flatten(grid) for grid in meshgrid(*vectors)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of r elements of a vector, as rows: [n] -> [combinations, r]."""
    _check_vectors("combinations", (input,))
    if r < 0:
        raise ArgumentError("combinations", "r from 0", f"{r}")
    chosen = list((_with_replacement if with_replacement else _combinations)(range(len(input)), r))
    indices = backends.backend_of(input.array).constant(np.array(chosen, np.int64).reshape(-1))
    return reshape(index_select(input, 0, Tensor(indices)), (len(chosen), r) if r else (0,))


def _check_vectors(where: str, tensors: Any) -> Any:
    for t in tensors:
        if not isinstance(t, Tensor):
            raise DTypeError(where, "Tensors", type(t).__name__, "wrap it: ampkit.tensor(...)")
    if not tensors or any(t.ndim != 1 for t in tensors):
        raise ShapeError(where, "vectors", ", ".join(str(tuple(t.shape)) for t in tensors) or "none")
    return tensors

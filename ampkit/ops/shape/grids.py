"""Coordinate grids and combinations: meshgrid, cartesian_prod, combinations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations as _combinations
from itertools import combinations_with_replacement as _with_replacement
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.tensor import Tensor

from ..indexing.index_select import index_select
from .broadcasting import broadcast_to
from .join_split import stack
from .view import flatten, reshape

__all__ = ["cartesian_prod", "combinations", "meshgrid"]


def meshgrid(*tensors: Tensor | Sequence[Tensor], indexing: str = "ij") -> tuple[Tensor, ...]:
    """Grids of coordinates: vectors [n], [m], ... -> as many tensors [n, m, ...], that share the vectors' memory.

    indexing="xy" exchanges the first two axes. Raises ShapeError for tensors that are no vectors or numbers.
    """
    given: Any = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    if not all(isinstance(t, Tensor) for t in given):
        raise DTypeError("meshgrid", "Tensors", "a list among them")
    if indexing not in ("ij", "xy"):
        raise ArgumentError("meshgrid", "indexing 'ij' or 'xy'", repr(indexing))
    if any(t.ndim > 1 for t in given):
        raise ShapeError("meshgrid", "vectors", ", ".join(str(tuple(t.shape)) for t in given))
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[:2] = [1, 0]
    shape = [0] * len(given)
    for t, at in zip(given, order, strict=True):
        shape[at] = t.numel()
    rows = [reshape(t, *(-1 if i == at else 1 for i in range(len(given)))) for t, at in zip(given, order, strict=True)]
    return tuple([broadcast_to(row, tuple(shape)) for row in rows])


def cartesian_prod(*tensors: Any) -> Tensor:
    """Every choice of one element from each of the vectors, as rows: [n], [m] -> [n m, 2]; of one vector, itself."""
    given = _check_vectors("cartesian_prod", tensors)
    return given[0] if len(given) == 1 else stack([flatten(grid) for grid in meshgrid(*given)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Every choice of r elements of a vector, in its order, as rows: [n] -> [choices, r]."""
    _check_vectors("combinations", (input,))
    if r < 0:
        raise ArgumentError("combinations", "r from 0", f"{r}")
    chosen = list((_with_replacement if with_replacement else _combinations)(range(len(input)), r))
    places = backends.backend_of(input.array).constant(np.array(chosen, np.int64).reshape(-1))
    return reshape(index_select(input, 0, Tensor(places)), (len(chosen), r) if r else (0,))


def _check_vectors(where: str, tensors: Any) -> Any:
    for t in tensors:
        if not isinstance(t, Tensor):
            raise DTypeError(where, "Tensors", type(t).__name__, "wrap it: ampkit.tensor(...)")
    if not tensors or any(t.ndim != 1 for t in tensors):
        raise ShapeError(where, "vectors", ", ".join(str(tuple(t.shape)) for t in tensors) or "none")
    return tensors

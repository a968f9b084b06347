"""Stacks and grids: tensors joined row by row or column by column, and broadcast against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_base import Shape

from .axes import sizes
from .concatenation import cat
from .view import broadcast_to, reshape

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_shapes", "broadcast_tensors", "column_stack", "dstack",
    "hstack", "meshgrid", "row_stack", "vstack",
]  # fmt: skip


def _each(where: str, function: Any, tensors: tuple[Any, ...]) -> Any:
    given = tensors[0] if len(tensors) == 1 else tensors
    if len(tensors) > 1 and not all(isinstance(t, Tensor) for t in tensors):
        raise DTypeError(where, "Tensors", "a list among them")
    return function(given) if isinstance(given, Tensor) else tuple(function(t) for t in given)


def atleast_1d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """A tensor, or several, with at least one axis: [] -> [1]."""
    return _each("atleast_1d", lambda t: reshape(t, 1) if not t.ndim else t, tensors)


def atleast_2d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """A tensor, or several, with at least two axes: [n] -> [1, n]."""
    return _each("atleast_2d", lambda t: reshape(t, *(1,) * (2 - t.ndim), *t.shape) if t.ndim < 2 else t, tensors)


def atleast_3d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """A tensor, or several, with at least three axes: [n] -> [1, n, 1], [n, m] -> [n, m, 1]."""
    return _each("atleast_3d", lambda t: reshape(atleast_2d(t), *atleast_2d(t).shape, 1) if t.ndim < 3 else t, tensors)


def _given(where: str, tensors: Any) -> tuple[Tensor, ...]:
    found = tuple(tensors) if isinstance(tensors, (list, tuple)) else (tensors,)
    for item in found:
        if not isinstance(item, Tensor):
            raise DTypeError(where, "a list of Tensors", f"a {type(item).__name__}", "wrap it: ampkit.tensor(...)")
    return found


def hstack(tensors: Any) -> Tensor:
    """The tensors joined along axis 1, vectors and numbers along axis 0. Raises ShapeError if other axes differ."""
    found = [atleast_1d(t) for t in _given("hstack", tensors)]
    return cat(found, 0 if found and found[0].ndim == 1 else 1)


def vstack(tensors: Any) -> Tensor:
    """The tensors joined along axis 0, vectors [n] as rows [1, n]. Raises ShapeError if other axes differ."""
    return cat([atleast_2d(t) for t in _given("vstack", tensors)], 0)


def dstack(tensors: Any) -> Tensor:
    """The tensors joined along axis 2, with axes added as by `atleast_3d`."""
    return cat([atleast_3d(t) for t in _given("dstack", tensors)], 2)


def column_stack(tensors: Any) -> Tensor:
    """The tensors joined along axis 1, vectors [n] as columns [n, 1]."""
    return cat([reshape(t, -1, 1) if t.ndim < 2 else t for t in _given("column_stack", tensors)], 1)


row_stack = vstack


def broadcast_shapes(*shapes: int | Sequence[int]) -> Shape:
    """The shape that shapes broadcast to. Raises ShapeError if they do not."""
    given = [sizes("broadcast_shapes", (s,)) for s in shapes]
    try:
        return Shape(np.broadcast_shapes(*given))
    except ValueError:
        found = " and ".join(map(str, given))
        raise ShapeError("broadcast", "shapes that broadcast", found) from None


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, each broadcast to the shape they have together; they share memory."""
    shape = tuple(broadcast_shapes(*(t.shape for t in tensors)))
    return tuple([broadcast_to(t, shape) for t in tensors])


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

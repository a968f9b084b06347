"""Axes: `dim` arguments, checked and made non-negative."""

from __future__ import annotations

from math import prod
from operator import index
from typing import Any

from ..core.errors import ArgumentError, DTypeError, RangeError, ShapeError

__all__: list[str] = []


def axis(where: str, dim: Any, ndim: int) -> int:
    """`dim` as an axis from 0 to ndim - 1. Raises RangeError outside [-ndim, ndim), DTypeError if it is no integer."""
    try:
        dim = index(dim) if type(dim) is not bool else index(None)
    except TypeError:
        raise DTypeError(where, "dim as an integer", repr(dim)) from None
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise RangeError(where, f"dim from {-max(ndim, 1)} to {max(ndim, 1) - 1}", f"{dim}")
    return dim % max(ndim, 1)  # type: ignore[no-any-return]


def axis_of(where: str, input: Any, dim: Any) -> int:
    """`dim` as an axis of `input`, which has to have one: `axis`, that also raises ShapeError for a 0-d tensor."""
    if not input.ndim:
        raise ShapeError(where, "a tensor with at least one axis", "one of none")
    return axis(where, dim, input.ndim)


def axes(where: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """`dim`, one axis or several, as axes from 0 to ndim - 1; None and () are all.

    Raises ShapeError for a repeated one, RangeError for one that is not there.
    """
    if dim is None or dim == () or dim == []:
        return tuple(range(ndim))
    if not isinstance(dim, (tuple, list)):
        return (axis(where, dim, ndim),) if ndim else _none(where, dim)
    found = tuple([axis(where, d, ndim) for d in dim])
    if len(set(found)) < len(found):
        raise ShapeError(where, "each dim once", f"{tuple(dim)}")
    return found if ndim else ()


def _none(where: str, dim: Any) -> tuple[int, ...]:
    axis(where, dim, 0)  # a 0-d tensor takes dim 0 and -1, which name nothing
    return ()


def sizes(where: str, given: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape given as numbers or as one sequence: `view(2, 3)`, `view((2, 3))`. Raises DTypeError if not integers."""
    found = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    try:
        return tuple([n.__index__() for n in found])
    except AttributeError:
        raise DTypeError(where, "a shape of integers", repr(tuple(found))) from None


def need_to_fit(where: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """`sizes` of an output. Raises ArgumentError for more elements than any machine's memory holds."""
    if prod(sizes) >= 1 << 40:
        raise ArgumentError(where, "an output that fits into memory", " x ".join(map(str, sizes)))
    return sizes

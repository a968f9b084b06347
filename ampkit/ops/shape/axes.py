"""Axes: `dim` arguments, checked and made non-negative."""

from __future__ import annotations

from math import prod
from operator import index
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, OutOfMemoryError, RangeError, ShapeError
from ampkit.core.arguments import MOST, shown

__all__: list[str] = []


def axis(where: str, dim: Any, ndim: int) -> int:
    """`dim` as an axis from 0 to ndim - 1. Raises RangeError outside [-ndim, ndim), DTypeError if it is no integer."""
    try:
        dim = index(dim) if type(dim) is not bool else index(None)
    except TypeError:
        raise DTypeError(where, "dim as an integer", repr(dim)) from None
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise RangeError(where, f"dim from {-max(ndim, 1)} to {max(ndim, 1) - 1}", f"{dim}")
    return dim % max(ndim, 1)


def axis_of(where: str, input: Any, dim: Any) -> int:
    """`dim` as an axis of `input`, which has to have one: `axis`, that also raises ShapeError for a 0-d tensor."""
    if not input.ndim:
        raise ShapeError(where, "a tensor with at least one axis", "one of none")
    return axis(where, dim, input.ndim)


def axes(where: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """`dim`, one axis or several, as axes from 0 to ndim - 1; None and () are all.

    Raises ShapeError for a repeated one, RangeError for one that is not there.
    """
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
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


_ADDRESSABLE = 1 << 47  # elements: a process of today's machines can address as many bytes


def addressable(where: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape`. Raises OutOfMemoryError for one that no memory can hold."""
    if prod([max(n, 1) for n in shape]) >= _ADDRESSABLE:
        raise OutOfMemoryError(where, "a shape that memory can hold", f"{shape}")
    return shape


def count(where: str, name: str, value: Any) -> int:
    """`value`, how many there are to be. Raises ArgumentError below 0, OutOfMemoryError for more than memory holds."""
    if value < 0:
        raise ArgumentError(where, f"{name} from 0", f"{value}")
    return addressable(where, (int(value),))[0]


def sizes(where: str, given: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape given as numbers or as one sequence: `view(2, 3)`, `view((2, 3))`. Raises DTypeError if not integers."""
    found = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    try:
        shape = tuple([index(n) for n in found])
    except TypeError:
        raise DTypeError(where, "a shape of integers", ", ".join(map(shown, found))) from None
    if any(n > MOST for n in shape):
        raise ArgumentError(where, "sizes within 64 bits", f"{shape}")
    return shape


def numbers_of(axes: int) -> str:
    """What a window takes for `axes` axes, in words."""
    return {1: "an integer", 2: "an integer or a pair"}.get(axes, f"an integer or {axes}")


_FAR = 1 << 40  # beyond, what is computed from them would leave 64 bits


def pair(where: str, name: str, value: Any, least: int, axes: int = 2) -> tuple[int, ...]:
    """`value`, an integer for all axes or one each. Raises ArgumentError for anything else, or below `least`."""
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    found = tuple(value) if isinstance(value, (list, tuple)) else (value,) * axes
    if len(found) != axes or not all(isinstance(v, (int, np.integer)) and v >= least for v in found):
        need = numbers_of(axes) + (" of them" if axes > 1 else "")
        raise ArgumentError(where, f"{name} as {need}, at least {least}", repr(value))
    if any(v >= _FAR for v in found):
        raise ArgumentError(where, f"{name} below {_FAR}", shown(value))
    return tuple([int(v) for v in found])

"""Saved: what a forward keeps for its backward, and casts of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ampkit import backends
from ampkit.base.dtypes import FLOATS, DType, accumulator

if TYPE_CHECKING:
    from .node import Node

# What a backward needs, by name: an item with the name of an input is that input, `out` is the (first) output; a float
# item with any other name is a statistic. Second derivatives compute statistics anew; where an input itself was not
# saved, they start from zeros of its shape, or from what `op.stand_in` makes.
Saved = SimpleNamespace
NOTHING = Saved()


def is_traced(array: Any) -> bool:
    """Whether `array` is a TracedArray, whose operations are recorded."""
    return hasattr(array, "tensor")


def cast(array: Any, dtype: DType) -> Any:
    """An array, traced or not, in `dtype`: itself if it is in it, else a rounded copy."""
    if array.dtype == dtype:
        return array
    return array.astype(dtype) if is_traced(array) else backends.backend_of(array).cast(array, dtype)


def to_accumulator(array: Any) -> Any:
    """An array, traced or not, in its accumulator dtype."""
    return cast(array, accumulator(array.dtype))


def widen(value: Any, compute: DType | None) -> Any:
    """A floating-point array (traced or not, or a tuple of them) in `compute`; anything else, and None, unchanged."""
    if type(value) is tuple:
        return tuple([widen(v, compute) for v in value])
    if compute is None or getattr(value, "dtype", None) not in FLOATS:
        return value
    return cast(value, compute)


def widen_saved(saved: Saved, compute: DType | None) -> Saved:
    """`saved` with every floating-point array in `compute`."""
    for value in saved.__dict__.values():
        if type(value) is tuple or getattr(value, "dtype", compute) is not compute:
            return Saved(**{name: widen(value, compute) for name, value in saved.__dict__.items()})
    return saved  # as most are


def with_zeros(node: Node, dys: list[Any]) -> Any:
    """The gradients of a node's outputs as a backward takes them: one, or a tuple with zeros where none arrived."""
    if len(dys) == 1:
        return dys[0]
    like = next(d for d in dys if d is not None)
    zeros = backends.backend_of(like.tensor.array if is_traced(like) else like).zeros
    return tuple(
        [zeros(*out) if dy is None and out[1] in FLOATS else dy for dy, out in zip(dys, node.outputs, strict=True)]
    )

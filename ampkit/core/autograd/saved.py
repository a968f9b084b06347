"""Saved: what a forward keeps for its backward."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ampkit import backends
from ampkit.base.dtypes import DIFFERENTIABLE, DType

from ..casts import is_traced, widen

if TYPE_CHECKING:
    from .node import Node

# What a backward needs, by name: an item with the name of an input is that input, `out` is the (first) output; a float
# item with any other name is a statistic. Second derivatives compute statistics anew; where an input itself was not
# saved, they start from zeros of its shape, or from what `op.stand_in` makes.
Saved = SimpleNamespace
NOTHING = Saved()


def keeps_arrays(saved: Any, params: Sequence[Any]) -> bool:
    """Whether a node holds on to memory: one that does not can be visited again though the graph is not retained.

    Lists among its parameters count as arrays, which they stand for.
    """
    if type(saved) is not Saved:
        return True
    for value in saved.__dict__.values():
        if (kind := type(value)) not in _PLAIN and (kind is not tuple or not _is_plain(value)):
            return True
    return not all(map(_is_plain, params))


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


_PLAIN = {int, float, bool, str, slice, type(None), type(...)}


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
    pairs = zip(dys, node.outputs, strict=True)
    return tuple([zeros(*out) if dy is None and out[1] in DIFFERENTIABLE else dy for dy, out in pairs])

"""Saved: what a forward keeps for its backward, and how it is widened again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import FLOATS, DType

from .node import Node
from .traced_array import TracedArray

# What a backward needs, by name: an item with the name of an input is that input, `out` is the (first) output; a float
# item with any other name is a statistic, which second derivatives compute anew, from zeros for an input that is not
# there: or from `as_<input>`, which may be a sum of several.
Saved = SimpleNamespace


def widen(value: Any, compute: DType | None) -> Any:
    """A floating-point array (traced or not, or a tuple of them) in `compute`; anything else, and None, as it is."""
    if type(value) is tuple:
        return tuple([widen(v, compute) for v in value])
    if compute is None or getattr(value, "dtype", None) not in FLOATS or value.dtype == compute:
        return value
    return value.astype(compute) if isinstance(value, TracedArray) else backends.backend_of(value).cast(value, compute)


def widen_saved(saved: Saved, compute: DType | None) -> Saved:
    """`saved` with every floating-point array in `compute`."""
    return Saved(**{name: widen(value, compute) for name, value in saved.__dict__.items()})


def filled(node: Node, dys: list[Any]) -> Any:
    """The gradients of a node's outputs as a backward takes them: one, or a tuple with zeros where none came."""
    if len(dys) == 1:
        return dys[0]
    like = next(d for d in dys if d is not None)
    zeros = np.zeros if isinstance(like, TracedArray) else backends.backend_of(like).zeros
    return tuple(
        [zeros(*out) if dy is None and out[1] in FLOATS else dy for dy, out in zip(dys, node.outputs, strict=True)]
    )

"""Broadcasting: broadcast_to, expand, broadcast_tensors, broadcast_shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_base import Shape

from ..argument_checks import broadcast_shape, broadcasts_to, check_addressable, parse_shape

__all__ = ["broadcast_shapes", "broadcast_tensors", "broadcast_to", "expand"]


@op(cast=Cast.KEEP, moves=True, view=True, numpy=np.broadcast_to)
def broadcast_to(input: Array, shape):
    """input repeated along axes of length 1, and along new leading axes, to `shape`; shares memory.

    The result can be changed in place unless it shows an element several times.
    Raises ShapeError if input does not broadcast to it.
    """
    # NumPy makes each of its broadcasts read-only, also one that repeats nothing.
    by = np.reshape if input.size == math.prod(shape) else np.broadcast_to
    try:
        return by(input, shape), Saved()
    except TypeError:  # of bools, which count as 0 and 1 elsewhere
        return by(input, tuple(map(int, shape))), Saved()


@broadcast_to.check
def broadcast_to_check(input, shape):
    check_addressable("broadcast_to", parse_shape("broadcast_to", (shape,)))
    if not isinstance(shape, (tuple, list)):
        raise DTypeError("broadcast_to", "a shape", repr(shape))
    if min(shape, default=0) < 0 or not broadcasts_to(input.shape, tuple(shape)):
        raise ShapeError("broadcast_to", f"a shape that {tuple(input.shape)} broadcasts to", f"{tuple(shape)}")


@broadcast_to.backward
def broadcast_to_backward(dy, saved, needs, shape):
    return dy  # the tape sums what broadcasting repeated


def expand(input: Tensor, *size: Any) -> Tensor:
    """input repeated along its axes of length 1, and along new leading axes; -1 keeps the length. Shares memory."""
    shape = list(parse_shape("expand", size))
    new = len(shape) - input.ndim
    for i, n in enumerate(shape):
        if n == -1 and i >= new >= 0:
            shape[i] = input.shape[i - new]
    return broadcast_to(input, tuple(shape))


def broadcast_shapes(*shapes: int | Sequence[int]) -> Shape:
    """The shape that `shapes` broadcast to. Raises ShapeError if they do not."""
    parsed = [parse_shape("broadcast_shapes", (s,)) for s in shapes]
    return Shape(broadcast_shape("broadcast", *parsed))


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, broadcast to their common shape; the results share memory."""
    shape = tuple(broadcast_shapes(*(t.shape for t in tensors)))
    return tuple([broadcast_to(t, shape) for t in tensors])

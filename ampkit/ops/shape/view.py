"""Shapes: the same elements in another shape or order. Nothing is computed, so every dtype passes through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from .axes import addressable, axes, axis, axis_of, sizes

__all__ = [
    "broadcast_to", "expand", "flatten", "moveaxis", "movedim", "permute", "reshape", "squeeze", "swapaxes", "swapdims",
    "t", "transpose", "unflatten", "unsqueeze",
]  # fmt: skip


@op(cast=Cast.KEEP, moves=True, view=True)
def reshape_(input: Array, shape):
    """The elements of input in row-major order, in another shape."""
    return input.reshape(shape), Saved(shape=input.shape)


@reshape_.check
def reshape_check(input, shape):
    known = math.prod([n for n in shape if n != -1])
    missing = shape.count(-1)
    fits = input.size == known if not missing else missing == 1 and known and not input.size % known
    if not fits:
        needs = f"a shape of {input.size} elements, to hold {tuple(input.shape)}"
        raise ShapeError("reshape", needs, f"{tuple(shape)}")


@reshape_.backward
def reshape_backward(dy, saved, needs, shape):
    return dy.reshape(saved.shape)


def reshape(input: Tensor, *shape: Any) -> Tensor:
    """The elements of input in row-major order, in another shape; one -1 stands for what is left.

    Shares memory where the layout allows. Raises ShapeError if the number of elements differs.
    """
    return reshape_(input, sizes("reshape", shape))


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """input with the axes from start_dim to end_dim made one. Raises ShapeError if they come in the wrong order."""
    first, last = axis("flatten", start_dim, input.ndim), axis("flatten", end_dim, input.ndim)
    if first > last:
        raise ShapeError("flatten", "start_dim before end_dim", f"{start_dim} and {end_dim}")
    shape = tuple(input.shape)
    middle = math.prod(shape[first : last + 1])
    return reshape_(input, (*shape[:first], middle, *shape[last + 1 :]))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """input with axis `dim` split into axes of `sizes`; one -1 stands for what is left."""
    at, shape, parts = axis_of("unflatten", input, dim), tuple(input.shape), list(sizes)
    if -1 in parts:
        parts[parts.index(-1)] = shape[at] // max(1, -math.prod(parts))
    if math.prod(parts) != shape[at]:
        raise ShapeError("unflatten", f"sizes whose product is {shape[at]}", f"{tuple(sizes)}")
    return reshape_(input, (*shape[:at], *parts, *shape[at + 1 :]))


def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """input without its axes of length 1, or without those among `dim` that have length 1."""
    gone = () if isinstance(dim, (tuple, list)) and not dim else axes("squeeze", dim, input.ndim)
    return reshape_(input, tuple([n for i, n in enumerate(input.shape) if n != 1 or i not in gone]))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """input with a new axis of length 1 at `dim`. Raises RangeError outside [-ndim - 1, ndim]."""
    at, shape = axis("unsqueeze", dim, input.ndim + 1), tuple(input.shape)
    return reshape_(input, (*shape[:at], 1, *shape[at:]))


# orders of axes


@op(cast=Cast.KEEP, moves=True, view=True)
def permute_(input: Array, dims):
    """input with its axes in the order `dims`."""
    return input.transpose(dims), Saved()


@permute_.check
def permute_check(input, dims):
    if len(axes("permute", dims, input.ndim)) != input.ndim or len(dims) != input.ndim:
        raise ShapeError("permute", f"each of {input.ndim} dims once", f"{tuple(dims)}")


@permute_.backward
def permute_backward(dy, saved, needs, dims):
    order = [d % len(dims) for d in dims]
    return dy.transpose(tuple([order.index(i) for i in range(len(order))]))


def permute(input: Tensor, *dims: Any) -> Tensor:
    """input with its axes in the order `dims`; shares memory. Raises ShapeError unless each axis is named once."""
    return permute_(input, sizes("permute", dims))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """input with two axes exchanged; shares memory."""
    a, b = axis("transpose", dim0, input.ndim), axis("transpose", dim1, input.ndim)
    order = list(range(input.ndim))
    if order:
        order[a], order[b] = b, a
    return permute_(input, tuple(order))


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; a vector as it is. Raises ShapeError for more than two axes."""
    if input.ndim > 2:
        raise ShapeError("t", "at most 2 axes", f"shape {tuple(input.shape)}", "use transpose or .mT")
    return transpose(input, 0, 1) if input.ndim == 2 else input


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """input with the axes `source` moved to `destination`, the others in their order; shares memory."""
    here = axes("movedim", source if isinstance(source, (tuple, list)) else (source,), input.ndim)
    there = axes("movedim", destination if isinstance(destination, (tuple, list)) else (destination,), input.ndim)
    if len(here) != len(there):
        raise ShapeError("movedim", "as many destinations as sources", f"{len(here)} and {len(there)}")
    order = [i for i in range(input.ndim) if i not in here]
    for to, frm in sorted(zip(there, here, strict=True)):
        order.insert(to, frm)
    return permute_(input, tuple(order))


@op(cast=Cast.KEEP, moves=True, view=True, numpy=np.broadcast_to)
def broadcast_to(input: Array, shape):
    """input repeated along axes of length 1, and along new leading axes, to `shape`; shares memory.

    Raises ShapeError if input does not broadcast to it.
    """
    return np.broadcast_to(input, shape), Saved()


@broadcast_to.check
def broadcast_to_check(input, shape):
    addressable("broadcast_to", sizes("broadcast_to", (shape,)))
    if not isinstance(shape, (tuple, list)):
        raise DTypeError("broadcast_to", "a shape", repr(shape))
    ends, positive = shape[len(shape) - input.ndim :], min(shape, default=0) >= 0
    if not positive or len(shape) < input.ndim or not all(n in (1, m) for n, m in zip(input.shape, ends, strict=True)):
        raise ShapeError("broadcast_to", f"a shape that {tuple(input.shape)} broadcasts to", f"{tuple(shape)}")


@broadcast_to.backward
def broadcast_to_backward(dy, saved, needs, shape):
    return dy  # the tape sums what broadcasting repeated


def expand(input: Tensor, *size: Any) -> Tensor:
    """input repeated along its axes of length 1, and along new leading axes; -1 keeps a length. Shares memory."""
    shape = list(sizes("expand", size))
    new = len(shape) - input.ndim
    for i, n in enumerate(shape):
        if n == -1 and i >= new >= 0:
            shape[i] = input.shape[i - new]
    return broadcast_to(input, tuple(shape))


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """`transpose`, with NumPy's names."""
    return transpose(input, axis0, axis1)


moveaxis, swapdims = movedim, transpose

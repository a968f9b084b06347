"""Joining and splitting along an axis. Values move; every dtype passes through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.arguments import is_whole
from ampkit.core.op import Array, Arrays, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from .axes import axis, axis_of
from .view import reshape

__all__ = ["cat", "chunk", "concat", "split", "stack", "unbind"]


@op(cast=Cast.WIDEST, moves=True)
def cat_(tensors: Arrays, dim=0):
    """The tensors joined along `dim`."""
    return np.concatenate(tensors, dim), Saved(lengths=tuple([t.shape[dim] for t in tensors]))


@cat_.check
def cat_check(tensors, dim):
    first = tensors[0]
    at = axis("cat", dim, first.ndim)
    for t in tensors[1:]:
        if t.ndim != first.ndim or t.shape[:at] + t.shape[at + 1 :] != first.shape[:at] + first.shape[at + 1 :]:
            found = ", ".join(str(tuple(t.shape)) for t in tensors)
            raise ShapeError("cat", f"shapes that agree except along dim {dim}", found)
    if not first.ndim:
        raise ShapeError("cat", "tensors with at least one axis", "0-d ones", "use stack")


@cat_.backward
def cat_backward(dy, saved, needs, dim):
    parts, start, before = [], 0, (slice(None),) * (dim % dy.ndim)
    for length in saved.lengths:
        parts.append(dy[(*before, slice(start, start + length))])
        start += length
    return tuple(parts)


def cat(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """The tensors joined along `dim`; dtypes agree on the widest. Raises ShapeError if the other axes differ.

    An empty one of shape [0] joins any others, as in PyTorch.
    """
    return cat_(_with_axes(_some("cat", tensors), dim), dim)


def _with_axes(tensors: list[Tensor], dim: int) -> list[Tensor]:
    # Tensors of shape [0] with the axes of the others, and length 0 along `dim`.
    shape = next((tuple(t.shape) for t in tensors if isinstance(t, Tensor) and t.ndim > 1), None)
    if shape is None:
        return tensors
    at = axis("cat", dim, len(shape))
    empty = (*shape[:at], 0, *shape[at + 1 :])
    return [reshape(t, empty) if isinstance(t, Tensor) and t.shape == (0,) else t for t in tensors]


@op(cast=Cast.WIDEST, moves=True)
def stack_(tensors: Arrays, dim=0):
    """The tensors joined along a new axis at `dim`."""
    return np.stack(tensors, dim), Saved()


@stack_.check
def stack_check(tensors, dim):
    axis("stack", dim, tensors[0].ndim + 1)
    if any(t.shape != tensors[0].shape for t in tensors):
        found = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ShapeError("stack", "equal shapes", found)


@stack_.backward
def stack_backward(dy, saved, needs, dim):
    before = (slice(None),) * (dim % dy.ndim)
    return tuple([dy[(*before, i)] for i in range(dy.shape[dim])])


def stack(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """The tensors joined along a new axis at `dim`; dtypes agree on the widest. Raises ShapeError if shapes differ."""
    return stack_(_some("stack", tensors), dim)


def _some(name: str, tensors: Any) -> list[Tensor]:
    found = list(tensors)
    if not found:
        raise ArgumentError(name, "at least one tensor", "none")
    return found


@op(cast=Cast.KEEP, moves=True, view=True)
def split_(input: Array, ends, dim):
    """Pieces of input along `dim`, cut at `ends`."""
    before, starts = (slice(None),) * dim, (0, *ends[:-1])
    return tuple([input[(*before, slice(a, b))] for a, b in zip(starts, ends, strict=True)]), Saved()


@split_.backward
def split_backward(dy, saved, needs, ends, dim):
    return np.concatenate(list(dy), dim) if type(dy) is tuple else dy


def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along `dim`: of a given length (the last may be shorter), or of the lengths in a list. Shares memory.

    Raises ShapeError if the lengths do not add up to the axis.
    """
    at = axis_of("split", tensor, dim)
    length = tensor.shape[at]
    if is_whole(split_size_or_sections):
        size = index(split_size_or_sections)
        if size <= 0 and (size or length):
            raise ArgumentError("split", "a length from 1", f"{size}")
        lengths = [min(size, length - start) for start in range(0, length, size or 1)] or [0]
    else:
        lengths = list(split_size_or_sections)
    if not lengths or sum(lengths) != length or min(lengths) < 0:
        raise ShapeError("split", f"lengths from 0 that add up to {length}", f"{lengths}")
    ends = tuple([sum(lengths[: i + 1]) for i in range(len(lengths))])
    return split_(tensor, ends, at)


_PIECES = 1 << 24  # each is a Tensor of its own: more would take hours and all memory


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces along `dim`, of equal length but for the last. Shares memory."""
    if not 1 <= chunks < _PIECES:
        raise ArgumentError("chunk", f"chunks from 1, below {_PIECES}", f"{chunks}")
    length = input.shape[axis_of("chunk", input, dim)]
    return split(input, -(-length // chunks) if length else [0] * chunks, dim)


@op(cast=Cast.KEEP, moves=True, view=True)
def unbind_(input: Array, dim):
    """The slices of input along `dim`."""
    before = (slice(None),) * dim
    return tuple([input[(*before, i, ...)] for i in range(input.shape[dim])]), Saved()


@unbind_.backward
def unbind_backward(dy, saved, needs, dim):
    return np.stack(list(dy), dim) if type(dy) is tuple else np.expand_dims(dy, dim)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices of input along `dim`, without that axis. Shares memory."""
    at = axis_of("unbind", input, dim)
    return unbind_(input, at) if input.shape[at] else ()


concat = cat

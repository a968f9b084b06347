"""Joining and splitting along an axis. Elements are copied or viewed, so every dtype passes through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import index
from typing import Any, cast

import numpy as np

from ampkit.base.dtypes import bool_
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.arguments import is_whole
from ampkit.core.dispatch import always
from ampkit.core.op import Array, Arrays, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import normalize_axis, normalize_axis_of
from ..indexing.getitem import narrow
from .view import atleast_1d, atleast_2d, atleast_3d, reshape

__all__ = [
    "cat", "chunk", "column_stack", "concat", "concatenate", "dsplit", "dstack", "hsplit", "hstack", "row_stack",
    "split", "stack", "tensor_split", "unbind", "vsplit", "vstack",
]  # fmt: skip


@op(cast=Cast.WIDEST, moves=True, opaque=True)
def cat_(tensors: Arrays, dim=0):
    """`cat` of at least one tensor."""
    return np.concatenate(tensors, dim), Saved(lengths=tuple([t.shape[dim] for t in tensors]))


@cat_.check
def cat_check(tensors, dim):
    first = tensors[0]
    at = normalize_axis("cat", dim, first.ndim)
    for t in tensors[1:]:
        if t.ndim != first.ndim or t.shape[:at] + t.shape[at + 1 :] != first.shape[:at] + first.shape[at + 1 :]:
            found = ", ".join(str(tuple(t.shape)) for t in tensors)
            raise ShapeError("cat", f"shapes that agree except along dim {dim}", found)
    if not first.ndim:
        raise ShapeError("cat", "tensors with at least one axis", "0-d ones", "use stack")


@cat_.backward
def cat_backward(dy, saved, needs, dim):
    return _pieces(dy, tuple(accumulate(saved.lengths)), dim % dy.ndim)


cat_backward.reference.views = always


def cat(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """The tensors concatenated along `dim`, in their widest dtype. Raises ShapeError if the other axes differ.

    A tensor of shape [0] is skipped whatever the other shapes, as in PyTorch.

    The gradients of leaves that were joined along their first axis may be parts of one array, on a CPU: each keeps the
    whole array alive, as in PyTorch. None is part of an array that something else holds, as a `backward(gradient)`.
    """
    return cat_(_reshape_empty(_nonempty_list("cat", tensors), dim), dim)


def _reshape_empty(tensors: list[Tensor], dim: int) -> list[Tensor]:
    # Reshape tensors of shape [0] to the others' axes with length 0 along `dim`.
    shapes = [t._array.shape for t in tensors if isinstance(t, Tensor)]
    shape = next((shape for shape in shapes if len(shape) > 1), None)
    if shape is None or (0,) not in shapes:
        return tensors
    at = normalize_axis("cat", dim, len(shape))
    empty = (*shape[:at], 0, *shape[at + 1 :])
    return [reshape(t, empty) if isinstance(t, Tensor) and t._array.shape == (0,) else t for t in tensors]


@op(cast=Cast.WIDEST, moves=True, opaque=True)
def stack_(tensors: Arrays, dim=0):
    """`stack` of at least one tensor."""
    return np.stack(tensors, dim), Saved()


@stack_.check
def stack_check(tensors, dim):
    normalize_axis("stack", dim, tensors[0].ndim + 1)
    if any(t.shape != tensors[0].shape for t in tensors):
        raise ShapeError("stack", "equal shapes", ", ".join(str(tuple(t.shape)) for t in tensors))


@stack_.backward
def stack_backward(dy, saved, needs, dim):
    return _slices(dy, dim % dy.ndim)


def stack(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """The tensors stacked along a new axis at `dim`, in their widest dtype. Raises ShapeError if shapes differ.

    Gradients of leaves may be parts of one array, as those of `cat`.
    """
    return stack_(_nonempty_list("stack", tensors), dim)


def _nonempty_list(name: str, tensors: Any) -> list[Tensor]:
    found = list(tensors)
    if not found:
        raise ArgumentError(name, "at least one tensor", "none")
    return found


@op(cast=Cast.KEEP, moves=True, view=True)
def split_(input: Array, ends, dim):
    """Pieces of input along `dim`, cut at `ends`."""
    return _pieces(input, ends, dim), Saved()


def _pieces(x: Any, ends: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    before = (slice(None),) * axis
    return tuple([x[(*before, slice(a, b))] for a, b in pairwise((0, *ends))])


@split_.backward
def split_backward(dy, saved, needs, ends, dim):
    return np.concatenate(list(dy), dim) if type(dy) is tuple else dy


def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views along `dim`: of one length (the last may be shorter), or of the lengths in a list.

    Raises ShapeError if the lengths do not add up to the axis.
    """
    at = normalize_axis_of("split", tensor, dim)
    length = tensor.shape[at]
    sections: Any = split_size_or_sections
    if is_whole(sections):
        size = index(sections)
        if size <= 0 and (size or length):
            raise ArgumentError("split", "a length from 1", f"{size}")
        lengths = [min(size, length - start) for start in range(0, length, size or 1)] or [0]
    else:
        lengths = list(sections)
    if not lengths or sum(lengths) != length or min(lengths) < 0:
        raise ShapeError("split", f"lengths from 0 that add up to {length}", f"{lengths}")
    return split_(tensor, tuple(accumulate(lengths)), at)


MAX_PIECES = 1 << 24  # each piece is a Tensor: more would exhaust memory


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views along `dim`, of equal length except the last."""
    if not 1 <= chunks < MAX_PIECES:
        raise ArgumentError("chunk", f"chunks from 1, below {MAX_PIECES}", f"{chunks}")
    length = input.shape[normalize_axis_of("chunk", input, dim)]
    return split(input, -(-length // chunks) if length else [0] * chunks, dim)


@op(cast=Cast.KEEP, moves=True, view=True)
def unbind_(input: Array, dim):
    """The slices of input along `dim`."""
    return _slices(input, dim), Saved()


def _slices(x: Any, axis: int) -> tuple[Any, ...]:
    before = (slice(None),) * axis
    return tuple([x[(*before, i, ...)] for i in range(x.shape[axis])])


@unbind_.backward
def unbind_backward(dy, saved, needs, dim):
    return np.stack(list(dy), dim) if type(dy) is tuple else np.expand_dims(dy, dim)


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices of input along `dim`, without that axis. Shares memory."""
    at = normalize_axis_of("unbind", input, dim)
    return unbind_(input, at) if input.shape[at] else ()


concat = cat


def _tensor_list(where: str, tensors: Any) -> tuple[Tensor, ...]:
    found = tuple(tensors) if isinstance(tensors, (list, tuple)) else (tensors,)
    for item in found:
        if not isinstance(item, Tensor):
            raise DTypeError(where, "a list of Tensors", f"a {type(item).__name__}", "wrap it: ampkit.tensor(...)")
    return found


def hstack(tensors: Any) -> Tensor:
    """Tensors concatenated along axis 1, vectors and numbers along axis 0. Raises ShapeError if other axes differ."""
    found = [atleast_1d(t) for t in _tensor_list("hstack", tensors)]
    return cat(found, 0 if found and found[0].ndim == 1 else 1)


def vstack(tensors: Any) -> Tensor:
    """The tensors concatenated along axis 0, vectors [n] as rows [1, n]. Raises ShapeError if other axes differ."""
    return cat([atleast_2d(t) for t in _tensor_list("vstack", tensors)], 0)


def dstack(tensors: Any) -> Tensor:
    """The tensors concatenated along axis 2, with axes added as by `atleast_3d`."""
    return cat([atleast_3d(t) for t in _tensor_list("dstack", tensors)], 2)


def column_stack(tensors: Any) -> Tensor:
    """The tensors concatenated along axis 1, vectors [n] as columns [n, 1]."""
    return cat([reshape(t, -1, 1) if t.ndim < 2 else t for t in _tensor_list("column_stack", tensors)], 1)


row_stack = vstack


def tensor_split(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views along `dim`: a number of nearly equal ones, the longer ones first, or split at indices."""
    at = normalize_axis_of("tensor_split", input, dim)
    length, cuts = input.shape[at], cast(Any, indices_or_sections)
    if isinstance(cuts, Tensor):
        if cuts.ndim > 1 or cuts.is_floating_point() or cuts.array.dtype == bool_:
            got = f"{cuts.dtype.name} of shape {tuple(cuts.shape)}"
            raise DTypeError("tensor_split", "a number or a vector of integers", got)
        cuts = cuts.tolist()
    if is_whole(cuts):
        cuts = index(cuts)
        if not 1 <= cuts < MAX_PIECES:
            raise ArgumentError("tensor_split", f"sections from 1, below {MAX_PIECES}", f"{cuts}")
        return split(input, [length // cuts + (i < length % cuts) for i in range(cuts)], at)
    ends = [min(max(c + length if c < 0 else c, 0), length) for c in (*cuts, length)]
    return tuple([narrow(input, at, min(a, b), max(b - a, 0)) for a, b in pairwise((0, *ends))])


def hsplit(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor) -> tuple[Tensor, ...]:
    """`tensor_split` along the second axis, of vectors along axis 0; a number must divide the length."""
    return _even_split("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1)


def vsplit(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor) -> tuple[Tensor, ...]:
    """`tensor_split` along the first of at least two axes; a number must divide the length."""
    return _even_split("vsplit", input, indices_or_sections, 0, 2)


def dsplit(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor) -> tuple[Tensor, ...]:
    """`tensor_split` along the third axis; a number must divide the length."""
    return _even_split("dsplit", input, indices_or_sections, 2, 3)


def _even_split(where: str, input: Tensor, sections: Any, dim: int, least: int = 1) -> tuple[Tensor, ...]:
    if input.ndim < max(least, dim + 1):
        raise ShapeError(where, f"at least {max(least, dim + 1)} axes", f"shape {tuple(input.shape)}")
    if is_whole(sections) and (sections < 1 or input.shape[dim] % sections):
        raise ShapeError(where, f"a number of sections that divides {input.shape[dim]}", f"{sections}")
    return tensor_split(input, sections, dim)


concatenate = cat

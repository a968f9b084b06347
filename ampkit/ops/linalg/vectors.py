"""Vectors: angles and distances between them, cross products, contractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.arguments import is_whole
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..indexing.subscript import broadcast_of
from ..reduction.norms import size_of, slope_of
from ..shape.axes import axes, axis
from ..shape.view import broadcast_to, permute, reshape
from .matmul import tensordot_

__all__ = ["cosine_similarity", "cross", "inner", "pairwise_distance", "tensordot"]


@op(cast=Cast.FP32, integers="float")
def cosine_similarity(x1: Array, x2: Array, dim=1, eps=1e-8):
    """The cosine of the angle between vectors along `dim`: their product over their lengths, each at least eps.

    x1, x2 broadcast: [.., n, ..] -> [..]. In float32 (float64 for float64). Raises RangeError for a `dim` out of range.
    """
    at = _from_end(x1, x2, dim)
    a, b = _of_one_length(x1, x2, at)
    return blocked_sum(_unit(a, at, eps) * _unit(b, at, eps), at), Saved(x1=x1, x2=x2, at=at)


def _of_one_length(a: Any, b: Any, at: int) -> tuple[Any, Any]:
    # A vector that is broadcast along `at` counts each of its copies.
    n = np.broadcast_shapes(a.shape[at:][:1], b.shape[at:][:1])
    a, b = (x if x.shape[at:][:1] == n else np.broadcast_to(x, (*x.shape[:at], *n, *x.shape[at:][1:])) for x in (a, b))
    return a, b


def _from_end(a: Any, b: Any, dim: int) -> int:
    # Counted from the end, as broadcasting does.
    rank = max(a.ndim, b.ndim)
    return axis("cosine_similarity", dim, rank) - rank


def _length(x: Any, dim: int, eps: float) -> tuple[Any, Any]:
    # At least eps; and whether it is more, so that it moves with x.
    square = blocked_sum(x * x, dim, True)
    moves = plain(square) > eps * eps
    return np.where(moves, np.sqrt(np.where(moves, square, 1)), eps), moves


def _unit(x: Any, dim: int, eps: float) -> Any:
    return x / _length(x, dim, eps)[0]


@cosine_similarity.check
def cosine_similarity_check(x1, x2, dim, eps):
    at = _from_end(x1, x2, dim)
    if any(-at > x.ndim for x in (x1, x2)):
        raise ShapeError(
            "cosine_similarity", f"two tensors with axis {dim}", f"{tuple(x1.shape)} and {tuple(x2.shape)}"
        )


@cosine_similarity.backward
def cosine_similarity_backward(dy, saved, needs, dim, eps):
    at = saved.at
    x1, x2 = _of_one_length(saved.x1, saved.x2, at)
    a, b = _unit(x1, at, eps), _unit(x2, at, eps)
    cosine = blocked_sum(a * b, at, True)
    share = dy.reshape(cosine.shape)
    da = _turn(share, cosine, x1, a, b, at, eps) if needs[0] is not None else None
    return da, _turn(share, cosine, x2, b, a, at, eps) if needs[1] is not None else None


def _turn(dy: Any, cosine: Any, x: Any, own: Any, other: Any, dim: int, eps: float) -> Any:
    length, moves = _length(x, dim, eps)
    return dy * (other - np.where(moves, cosine, 0) * own) / length


@op(cast=Cast.FP32, integers="float")
def pairwise_distance(x1: Array, x2: Array, p=2.0, eps=1e-6, keepdim=False):
    """The p-norm of x1 - x2 + eps over the last axis: [..., n], [..., n] -> [...], broadcast; p may be inf.

    In float32 (float64 for float64 input). Raises ArgumentError for a p that is no number, ShapeError unless the shapes
    broadcast.
    """
    out = size_of(x1 - x2 + eps, float(p), -1, keepdim)
    return out, Saved(x1=x1, x2=x2, out=out)


@pairwise_distance.check
def pairwise_distance_check(x1, x2, p, eps, keepdim):
    if not isinstance(p, (int, float)) or p != p:
        raise ArgumentError("pairwise_distance", "p as a number", f"{p!r}")
    if math.isinf(p) and 0 in (*np.shape(x1)[-1:], *np.shape(x2)[-1:]):
        raise ShapeError("pairwise_distance", "at least one element, for an extreme", f"{np.shape(x1)}")


@pairwise_distance.backward
def pairwise_distance_backward(dy, saved, needs, p, eps, keepdim):
    out, each = (a if keepdim else np.expand_dims(a, -1) for a in (saved.out, dy))
    slope = each * slope_of(saved.x1 - saved.x2 + eps, out, float(p), -1)
    return slope, -slope if needs[1] is not None else None


@op(cast=Cast.WIDEST)
def cross(input: Array, other: Array, dim=None):
    """The cross product of vectors of 3 along `dim`, by default the first axis of length 3; broadcast, rounded once.

    Raises ShapeError if there is no such axis.
    """
    at = _three(input, other, dim)
    return _crossed(input, other, at), Saved(input=input, other=other, at=at)


def _three(a: Any, b: Any, dim: int | None) -> int:
    # Counted from the end, as broadcasting does.
    rank = max(a.ndim, b.ndim)
    if dim is not None:
        return axis("cross", dim, rank) - rank
    longest = a if a.ndim >= b.ndim else b
    return longest.shape.index(3) - rank


def _crossed(a: Any, b: Any, at: int) -> Any:
    def turned(x: Any, by: int) -> Any:
        return np.roll(x, -by, at)

    return turned(a, 1) * turned(b, 2) - turned(a, 2) * turned(b, 1)


@cross.check
def cross_check(input, other, dim):
    found = f"{tuple(input.shape)} and {tuple(other.shape)}"
    longest = input if input.ndim >= other.ndim else other
    if not longest.ndim or (dim is None and 3 not in longest.shape):
        raise ShapeError("cross", "an axis of length 3", found)
    at = _three(input, other, dim)
    if any(-at > x.ndim or x.shape[at] != 3 for x in (input, other)):
        raise ShapeError("cross", "an axis of length 3 in both", found)


@cross.backward(input="other", other="input")
def cross_backward(dy, saved, needs, dim):
    da = _crossed(saved.other, dy, saved.at) if needs[0] is not None else None
    return da, _crossed(dy, saved.input, saved.at) if needs[1] is not None else None


def inner(input: Tensor, other: Tensor) -> Tensor:
    """The products over the last axes: [..., n], [*S, n] -> [..., *S]; with a number, all of it multiplied.

    Raises ShapeError if the last axes differ.
    """
    if not input.ndim or not other.ndim:
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError("inner", "last axes of equal lengths", f"{tuple(input.shape)} and {tuple(other.shape)}")
    return tensordot(input, other, ([-1], [-1]))


def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Any] = 2) -> Tensor:
    """The products of a and b summed over pairs of axes: the last `dims` of a and the first of b, or two lists of axes.

    What is left of a, then of b, are the axes of the answer. An axis of length 1 is broadcast. One matrix product in
    the wider dtype of the two, summed in float32 and rounded once.
    Raises ShapeError if the axes of a pair differ in length, ArgumentError for a number of axes that one does not have.
    """
    ours, theirs = _pairs(a, b, dims)
    summed = [broadcast_of("tensordot", (a.shape[i],), (b.shape[j],))[0] for i, j in zip(ours, theirs, strict=True)]
    a, b = _with_lengths(a, ours, summed), _with_lengths(b, theirs, summed)
    rows, columns = ([i for i in range(t.ndim) if i not in over] for t, over in ((a, ours), (b, theirs)))
    left = reshape(permute(a, (*rows, *ours)), (math.prod(a.shape[i] for i in rows), math.prod(summed)))
    right = reshape(permute(b, (*theirs, *columns)), (math.prod(summed), math.prod(b.shape[i] for i in columns)))
    return reshape(tensordot_(left, right), (*(a.shape[i] for i in rows), *(b.shape[i] for i in columns)))


def _pairs(a: Tensor, b: Tensor, dims: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    # The axes of a and of b that are summed over.
    if is_whole(dims):
        dims = index(dims)
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ArgumentError("tensordot", f"dims from 0 to {min(a.ndim, b.ndim)}", f"{dims}")
        dims = tuple(range(a.ndim - dims, a.ndim)), tuple(range(dims))
    if len(dims) != 2 or not all(isinstance(over, (list, tuple)) for over in dims):
        raise ArgumentError("tensordot", "dims as a number, or two lists of axes", repr(dims)[:80])
    pairs = zip((a, b), dims, strict=True)
    ours, theirs = (axes("tensordot", tuple(over), t.ndim) if len(over) else () for t, over in pairs)
    if len(ours) != len(theirs):
        raise ShapeError("tensordot", "as many axes of a as of b", f"{len(ours)} and {len(theirs)}")
    return ours, theirs


def _with_lengths(x: Tensor, over: tuple[int, ...], lengths: list[int]) -> Tensor:
    shape = list(x.shape)
    for i, length in zip(over, lengths, strict=True):
        shape[i] = length
    return x if shape == list(x.shape) else broadcast_to(x, tuple(shape))

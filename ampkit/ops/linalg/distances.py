"""Distances and cosine similarity between vectors. In float32, rounded once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import accumulator, float32, is_float
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.casts import is_traced
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import broadcast_shape, normalize_axis
from ..indexing.index_select import index_select
from ..pointwise.arithmetic import sub
from ..pointwise.comparison import isnan
from ..pointwise.selection import masked_fill
from ..reduction.norms import p_norm, p_norm_grad
from ..reduction.reductions import any
from ..shape.view import broadcast_to, flatten

__all__ = ["cdist", "cosine_similarity", "dist", "pairwise_distance", "pdist"]
_MAX_DIFFERENCES = 1 << 22  # differences held at once: 16 MB of float32


@op(cast=Cast.FP32, integers="refuse")
def cdist(x1: Array, x2: Array, p=2.0, compute_mode: CompatArg = None):
    """The p-norms of all differences of rows: x1 [.., P, M], x2 [.., R, M], leading axes broadcast -> [.., P, R].

    Computed from the differences, not from a matrix product, which would cancel. p >= 0 or inf; p = 0 counts
    nonzero differences, and is NaN if one is NaN.
    Raises ShapeError unless the rows are equally long, ArgumentError for a negative p.
    """
    parts = [_row_norm(gap, _order(p, x1)) for gap in _row_differences(x1, x2)]
    out = parts[0] if len(parts) == 1 else np.concatenate(parts, -2)
    return out, Saved(x1=x1, x2=x2, out=out)


def _row_norm(gap: Any, p: float) -> Any:
    size = p_norm(gap, p, -1, False)
    return size if p else np.where((plain(gap) != plain(gap)).any(-1), math.nan, size)


def _order(p: float, x: Any) -> float:
    return float(p) if x.shape[-1] else 1.0  # of empty rows, every norm is 0


def _row_blocks(x1: Any, x2: Any) -> Iterator[slice]:
    lead = math.prod(np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2]))
    rows = max(_MAX_DIFFERENCES // max(lead * x2.shape[-2] * x2.shape[-1], 1), 1)
    return (slice(i, i + rows) for i in range(0, max(x1.shape[-2], 1), rows))


def _row_differences(x1: Any, x2: Any) -> Iterator[Any]:
    return (x1[..., rows, None, :] - x2[..., None, :, :] for rows in _row_blocks(x1, x2))


@cdist.check
def cdist_check(x1, x2, p):
    if min(x1.ndim, x2.ndim) < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError("cdist", "x1 [.., P, M] and x2 [.., R, M]", f"{tuple(x1.shape)} and {tuple(x2.shape)}")
    broadcast_shape("cdist", x1.shape[:-2], x2.shape[:-2])
    if not p >= 0:
        raise ArgumentError("cdist", "p from 0 on, or inf", f"{p}")


@cdist.backward
def cdist_backward(dy, saved, needs, p):
    x1, x2 = saved.x1, saved.x2
    left, right = [], None
    for rows, gap in zip(_row_blocks(x1, x2), _row_differences(x1, x2), strict=True):
        here = (..., rows, slice(None), None)
        grad = dy[here] * p_norm_grad(gap, saved.out[here], _order(p, x1), -1)
        left.append(blocked_sum(grad, -2))
        right = -blocked_sum(grad, -3) if right is None else right - blocked_sum(grad, -3)
    return left[0] if len(left) == 1 else np.concatenate(left, -2), right


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of all pairs of rows, (0, 1), (0, 2), ...: [N, M] -> [N (N - 1) / 2]; see `cdist`.

    Raises ShapeError for another number of axes, ArgumentError for a negative p.
    """
    if input.ndim != 2:
        raise ShapeError("pdist", "rows [N, M]", f"shape {tuple(input.shape)}")
    if not p >= 0:
        raise ArgumentError("pdist", "p from 0 on, or inf", f"{p}")
    narrow = is_float(input.array.dtype) and accumulator(input.array.dtype) == float32
    if p == 2 and narrow and type(input.array) is np.ndarray and 0 not in input.shape:
        # All pairs, each twice, for the kernel of cdist: quicker than copies of the rows of each pair.
        first, second = np.triu_indices(len(input), 1)
        return index_select(flatten(cdist(input, input)), 0, Tensor(first * len(input) + second))
    there = backends.backend_of(input.array).constant
    first, second = (index_select(input, 0, Tensor(there(at))) for at in np.triu_indices(len(input), 1))
    found = pairwise_distance(first, second, p, 0.0)
    return found if p else masked_fill(found, any(isnan(sub(first, second)), -1), math.nan)


def dist(input: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm of input - other, broadcast: -> []. Raises ShapeError unless they broadcast."""
    shape = broadcast_shape("dist", input.shape, other.shape)
    pair = (flatten(broadcast_to(t, shape)) for t in (input, other))
    return pairwise_distance(*pair, p, 0.0)


@op(cast=Cast.FP32, integers="float")
def cosine_similarity(x1: Array, x2: Array, dim=1, eps=1e-8):
    """The cosine of the angle between vectors along `dim`: their inner product over their norms, each at least eps.

    x1, x2 broadcast: [.., n, ..] -> [..]. In float32 (float64 for float64). Raises RangeError for a `dim` out of range.
    """
    at = from_end(x1, x2, dim)
    a, b = _expand_reduced_axis(x1, x2, at)
    return blocked_sum(_normalized(a, at, eps) * _normalized(b, at, eps), at), Saved(x1=x1, x2=x2, at=at)


def _expand_reduced_axis(a: Any, b: Any, at: int) -> tuple[Any, Any]:
    # Broadcast axis `at` of both, so that reductions along it see equal lengths.
    n = np.broadcast_shapes(a.shape[at:][:1], b.shape[at:][:1])
    a, b = (x if x.shape[at:][:1] == n else np.broadcast_to(x, (*x.shape[:at], *n, *x.shape[at:][1:])) for x in (a, b))
    return a, b


def from_end(a: Any, b: Any, dim: int) -> int:
    """A negative axis, which stays valid when leading axes are broadcast."""
    rank = max(a.ndim, b.ndim)
    return normalize_axis("cosine_similarity", dim, rank) - rank


def _clamped_norm(x: Any, dim: int, eps: float) -> tuple[Any, Any]:
    # The vectors' norm, at least eps; and where it exceeds eps, so that it depends on x.
    norm = p_norm(plain(x), 2.0, dim, True)
    exceeds = norm > eps
    if is_traced(x):
        norm = p_norm(np.where(exceeds, x, 1), 2.0, dim, True)
    return np.where(exceeds, norm, eps), exceeds


def _normalized(x: Any, dim: int, eps: float) -> Any:
    return x / _clamped_norm(x, dim, eps)[0]


@cosine_similarity.check
def cosine_similarity_check(x1, x2, dim, eps):
    at = from_end(x1, x2, dim)
    if -at > min(x1.ndim, x2.ndim):
        got = f"{tuple(x1.shape)} and {tuple(x2.shape)}"
        raise ShapeError("cosine_similarity", f"two tensors with axis {dim}", got)


@cosine_similarity.backward
def cosine_similarity_backward(dy, saved, needs, dim, eps):
    at = saved.at
    x1, x2 = _expand_reduced_axis(saved.x1, saved.x2, at)
    a, b = _normalized(x1, at, eps), _normalized(x2, at, eps)
    cosine = blocked_sum(a * b, at, True)
    share = dy.reshape(cosine.shape)
    da = _cosine_gradient(share, cosine, x1, a, b, at, eps) if needs[0] is not None else None
    return da, _cosine_gradient(share, cosine, x2, b, a, at, eps) if needs[1] is not None else None


def _cosine_gradient(dy: Any, cosine: Any, x: Any, own: Any, other: Any, dim: int, eps: float) -> Any:
    length, exceeds = _clamped_norm(x, dim, eps)
    return dy * (other - np.where(exceeds, cosine, 0) * own) / length


@op(cast=Cast.FP32, integers="float")
def pairwise_distance(x1: Array, x2: Array, p=2.0, eps=1e-6, keepdim=False):
    """The p-norm of x1 - x2 + eps over the last axis: [..., n], [..., n] -> [...], broadcast; p may be inf.

    In float32 (float64 for float64 input). Raises ArgumentError unless p is a number, ShapeError unless the shapes
    broadcast.
    """
    out = p_norm(x1 - x2 + eps, float(p), -1, keepdim)
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
    grad = each * p_norm_grad(saved.x1 - saved.x2 + eps, out, float(p), -1)
    return grad, -grad if needs[1] is not None else None

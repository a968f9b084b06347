"""Distances between vectors, each with each, and between whole tensors. In float32, rounded once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.blocked_sum import blocked_sum
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..indexing.subscript import broadcast_of, index_select
from ..pointwise.arithmetic import sub
from ..pointwise.comparison import isnan
from ..pointwise.selection import masked_fill
from ..reduction.norms import size_of, slope_of
from ..reduction.reductions import any
from ..shape.view import broadcast_to, flatten
from .vectors import pairwise_distance

__all__ = ["cdist", "dist", "pdist"]

_ROOM = 1 << 22  # differences at once: 16 MB of float32


@op(cast=Cast.FP32, integers="refuse")
def cdist(x1: Array, x2: Array, p=2.0, compute_mode: CompatArg = None):
    """The p-norms of all differences of rows: x1 [.., P, M], x2 [.., R, M], leading axes broadcast -> [.., P, R].

    Of the differences themselves, never by a product, which would cancel. p from 0 on, or inf; p = 0 counts those that
    are not 0, and is NaN if one is.
    Raises ShapeError unless the rows are equally long, ArgumentError for a negative p.
    """
    parts = [_size(gap, _order(p, x1)) for gap in _gaps(x1, x2)]
    out = parts[0] if len(parts) == 1 else np.concatenate(parts, -2)
    return out, Saved(x1=x1, x2=x2, out=out)


def _size(gap: Any, p: float) -> Any:
    size = size_of(gap, p, -1, False)
    return size if p else np.where((plain(gap) != plain(gap)).any(-1), math.nan, size)


def _order(p: float, x: Any) -> float:
    return float(p) if x.shape[-1] else 1.0  # of nothing, every norm is 0


def _slices(x1: Any, x2: Any) -> Iterator[slice]:
    lead = math.prod(np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2]))
    rows = max(_ROOM // max(lead * x2.shape[-2] * x2.shape[-1], 1), 1)
    return (slice(i, i + rows) for i in range(0, max(x1.shape[-2], 1), rows))


def _gaps(x1: Any, x2: Any) -> Iterator[Any]:
    return (x1[..., rows, None, :] - x2[..., None, :, :] for rows in _slices(x1, x2))


@cdist.check
def cdist_check(x1, x2, p):
    if min(x1.ndim, x2.ndim) < 2 or x1.shape[-1] != x2.shape[-1]:
        got = f"{tuple(x1.shape)} and {tuple(x2.shape)}"
        raise ShapeError("cdist", "x1 [.., P, M] and x2 [.., R, M]", got)
    broadcast_of("cdist", x1.shape[:-2], x2.shape[:-2])
    if not p >= 0:
        raise ArgumentError("cdist", "p from 0 on, or inf", f"{p}")


@cdist.backward
def cdist_backward(dy, saved, needs, p):
    x1, x2 = saved.x1, saved.x2
    left, right = [], None
    for rows, gap in zip(_slices(x1, x2), _gaps(x1, x2), strict=True):
        here = (..., rows, slice(None), None)
        slope = dy[here] * slope_of(gap, saved.out[here], _order(p, x1), -1)
        left.append(blocked_sum(slope, -2))
        right = -blocked_sum(slope, -3) if right is None else right - blocked_sum(slope, -3)
    return left[0] if len(left) == 1 else np.concatenate(left, -2), right


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of all pairs of rows, (0, 1), (0, 2), ...: [N, M] -> [N (N - 1) / 2]; see `cdist`.

    Raises ShapeError for another number of axes, ArgumentError for a negative p.
    """
    if input.ndim != 2:
        raise ShapeError("pdist", "rows [N, M]", f"shape {tuple(input.shape)}")
    if not p >= 0:
        raise ArgumentError("pdist", "p from 0 on, or inf", f"{p}")
    there = backends.backend_of(input.array).constant
    first, second = (index_select(input, 0, Tensor(there(at))) for at in np.triu_indices(len(input), 1))
    found = pairwise_distance(first, second, p, 0.0)
    return found if p else masked_fill(found, any(isnan(sub(first, second)), -1), math.nan)


def dist(input: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm of input - other, broadcast: -> []. Raises ShapeError unless they broadcast."""
    shape = broadcast_of("dist", input.shape, other.shape)
    pair = (flatten(broadcast_to(t, shape)) for t in (input, other))
    return pairwise_distance(*pair, p, 0.0)

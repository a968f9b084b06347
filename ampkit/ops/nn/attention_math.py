"""The reference of attention: scores and softmax in blocks.

The weights of a block are temporary; the backward recomputes them from the log-sum-exp of each row (Dao et al. 2022,
arXiv:2205.14135, sec. 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array

from ..reduction.dot_products import dot_along, matmul_arrays
from .dropout import mask

# Scores per block: half a MiB of float32, which with its temporaries fits a second-level cache.
BLOCK = 2**17
# Rows per block under a causal mask: columns beyond its last row are skipped.
CAUSAL_ROWS = 32


class Operands(NamedTuple):
    """query [..., L, E], key [..., S, E], value [..., S, V]; additive and boolean mask [..., L, S] or None."""

    query: Array
    key: Array
    value: Array
    added: Array | None = None
    allowed: Array | None = None


class _Block(NamedTuple):
    """A block of scores: slices of the leading axes, rows first to end, and the first `width` columns."""

    lead: tuple[slice, ...]
    first: int
    end: int
    width: int

    @property
    def rows(self) -> tuple[slice, ...]:
        return *self.lead, slice(self.first, self.end)

    @property
    def columns(self) -> tuple[slice, ...]:
        return *self.lead, slice(self.width)

    @property
    def scores(self) -> tuple[slice, ...]:
        return *self.rows, slice(self.width)


def forward(a: Operands, causal: bool, scale: float, dropout_p: float, draw: Any) -> tuple[Array, Array]:
    """(output [..., L, V], log-sum-exp of each row of scores [..., L])."""
    out = np.empty_like(a.query, shape=(*a.query.shape[:-1], a.value.shape[-1]))
    lse = np.empty_like(a.query, shape=a.query.shape[:-1], order="C")
    keep = _keep(a, dropout_p, draw)
    for block in _blocks(a, causal):
        weights = _scores(a, block, causal, scale)
        highest = weights.max(-1, keepdims=True)
        highest = np.where(highest == -np.inf, 0, highest)  # a row that attends to no key
        weights -= highest
        total = np.exp(weights, out=weights).sum(-1, keepdims=True)
        lse[block.rows] = np.where(total == 0, np.inf, highest + np.log(total))[..., 0]
        if keep is not None:
            weights *= keep[block.scores]
        out[block.rows] = matmul_arrays(weights, a.value[block.columns]) / (
            np.where(total == 0, 1, total) * (1 - dropout_p)
        )
    return out, lse


def backward(
    a: Operands, dy: Array, lse: Array, needs: Any, causal: bool, scale: float, dropout_p: float, draw: Any
) -> tuple[Any, Any, Any, Any]:
    """The gradients of query, key, value and the additive mask; None for those not in `needs`."""
    dq, dk, dv = (np.zeros_like(x) if need else None for x, need in zip(a, needs[:3], strict=False))
    dadded = np.zeros_like(lse, shape=_scores_shape(a)) if needs[3] else None
    keep = _keep(a, dropout_p, draw)
    for block in _blocks(a, causal):
        weights, grad = _scores(a, block, causal, scale), dy[block.rows]
        weights -= lse[block.rows][..., None]
        total = np.exp(weights, out=weights).sum(-1, keepdims=True)
        weights /= np.where(total == 0, 1, total)  # corrects the rounding of lse, which matters for weights near 1
        dropped = weights if keep is None else weights * keep[block.scores] / (1 - dropout_p)
        if dv is not None:
            dv[block.columns] += matmul_arrays(dropped.swapaxes(-1, -2), grad)
        if dq is None and dk is None and dadded is None:
            continue
        ds = matmul_arrays(grad, a.value[block.columns].swapaxes(-1, -2))
        if keep is not None:
            ds *= keep[block.scores]
            ds /= 1 - dropout_p
        ds -= dot_along(weights, ds, -1)
        ds *= weights
        if dadded is not None:
            dadded[block.scores] = ds
        if dq is not None:
            dq[block.rows] = matmul_arrays(ds, a.key[block.columns]) * scale
        if dk is not None:
            dk[block.columns] += matmul_arrays(ds.swapaxes(-1, -2), a.query[block.rows] * scale)
    return dq, dk, dv, dadded


def forward_traced(a: Operands, causal: bool, scale: float, dropout_p: float, draw: Any) -> Any:
    """The output by differentiable ops on all scores at once, which double backward traces."""
    scores = (a.query * scale) @ a.key.swapaxes(-1, -2)
    if a.added is not None:
        scores = scores + a.added
    dtype = scores.dtype
    if causal or a.allowed is not None:
        blocked = _future(plain(a.query), 0, *scores.shape[-2:]) if causal else ~plain(a.allowed)
        scores = scores + np.where(blocked, -np.inf, 0).astype(dtype)
    highest = plain(scores).max(-1, keepdims=True)
    weights = np.exp(scores - np.where(highest == -np.inf, 0, highest))
    total = weights.sum(-1, keepdims=True)
    weights = weights / (total + (plain(total) == 0).astype(dtype))
    if draw is not None:
        lead = np.broadcast_shapes(scores.shape[:-2], a.value.shape[:-2])
        keep = mask(plain(total), dropout_p, *draw, (*lead, *scores.shape[-2:]))
        weights = weights * (keep / (1 - dropout_p)).astype(dtype)
    return weights @ a.value


def _scores(a: Operands, block: _Block, causal: bool, scale: float) -> Array:
    scores = matmul_arrays(a.query[block.rows] * scale, a.key[block.columns].swapaxes(-1, -2))
    if a.added is not None:
        scores += a.added[block.scores]
    if a.allowed is not None:
        np.copyto(scores, -np.inf, where=~a.allowed[block.scores])
    if causal and block.width > block.first + 1:
        corner = scores[..., block.first :]  # earlier columns are allowed in every row of the block
        np.copyto(corner, -np.inf, where=_future(scores, 0, *corner.shape[-2:]))
    return scores


def _future(like: Array, first: int, rows: int, width: int) -> Array:
    return np.arange(width, like=like) > np.arange(first, first + rows, like=like)[:, None]


def _blocks(a: Operands, causal: bool) -> Iterator[_Block]:
    *lead, rows, columns = _scores_shape(a)
    step = max(1, min(rows, CAUSAL_ROWS if causal else rows, BLOCK // columns))
    budget, steps = BLOCK // (step * columns), []
    for n in reversed(lead):
        steps.append(max(1, min(n, budget)))
        budget //= steps[-1]
    ranges = [[slice(i, i + s) for i in range(0, n, s)] for n, s in zip(lead, reversed(steps), strict=True)]
    for at in product(*ranges):
        for first in range(0, rows, step):
            end = min(first + step, rows)
            yield _Block(at, first, end, min(end, columns) if causal else columns)


def _scores_shape(a: Operands) -> tuple[int, ...]:
    return (*a.query.shape[:-1], a.key.shape[-2])


def _keep(a: Operands, dropout_p: float, draw: Any) -> Array | None:
    return None if draw is None else mask(a.query, dropout_p, *draw, _scores_shape(a))


def broadcast(a: Operands) -> Operands:
    """All operands broadcast to the same leading axes, as views."""
    lead = np.broadcast_shapes(*(array.shape[:-2] for array in a[:3]))
    scores = (*lead, a.query.shape[-2], a.key.shape[-2])
    three = (x if x.shape[:-2] == lead else np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in a[:3])
    return Operands(*three, *(None if m is None else np.broadcast_to(m, scores) for m in a[3:]))


def split_heads(a: Operands) -> Operands:
    """Grouped query attention: query [..., H, L, E] as [..., key heads, H / key heads, L, E]; the others to match."""
    heads = a.key.shape[-3]

    def split(array: Any, parts: int) -> Any:
        if array is None or array.ndim < 3:
            return array
        shared = array.shape[-3] == 1
        return array.reshape(*array.shape[:-3], *((1, 1) if shared else (heads, parts)), *array.shape[-2:])

    each = a.query.shape[-3] // heads
    parts = (each, 1, 1, each, each)
    return Operands(*(split(array, n) for array, n in zip(a, parts, strict=True)))


def join_heads(array: Array) -> Array:
    """Undo `split_heads`: merge the axes -4 and -3."""
    return array.reshape(*array.shape[:-4], array.shape[-4] * array.shape[-3], *array.shape[-2:])

"""Attention: scores and their softmax in float32, a block of them at a time, one rounding of the result.

The weights of a block are used and dropped; the backward computes them again from each row's log-sum-exp
(Dao et al. 2022, arXiv:2205.14135, sec. 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..core import random
from ..core.errors import ArgumentError, DTypeError, ShapeError
from ..core.op import Array, Index, Saved, op
from ..core.policy import Cast
from ..core.random import keep_mask
from ..core.replay import Taped, plain
from ..core.tensor import Tensor
from .sums import dot_along, times

__all__ = ["scaled_dot_product_attention"]

# Scores computed at a time: half a MiB of float32, which with its temporaries fits a second-level cache.
BLOCK = 2**17
# Rows of a block under a causal mask: what lies right of its last row is skipped.
CAUSAL_ROWS = 32


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query key^T * scale + mask) value, by row.

    query [..., L, E], key [..., S, E], value [..., S, V] -> [..., L, V]; leading axes broadcast. attn_mask, that
    broadcasts to [..., L, S], is boolean, True where a query may look, or is added to the scores; a query that may
    look nowhere gets zeros. is_causal: query i looks at keys 0 to i. scale: by default 1 / sqrt(E). dropout_p: the
    share of weights dropped, by a draw of the default stream. enable_gqa: each head of key and value, in the third
    axis from the right, serves several consecutive heads of query.
    Scores, softmax and sums are float32 (float64 for float64 inputs), and the result is rounded once.
    Raises ShapeError for shapes that do not fit, ArgumentError for arguments that do not go together.
    Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245 (grouped heads).
    """
    where = "scaled_dot_product_attention"
    if not 0 <= dropout_p < 1:
        raise ArgumentError(where, "dropout_p in [0, 1)", f"{dropout_p}")
    if is_causal and attn_mask is not None:
        raise ArgumentError(where, "is_causal or attn_mask", "both", "put the causal mask into attn_mask")
    if attn_mask is not None and attn_mask.dtype.kind in "iu":
        raise DTypeError(where, "a boolean or floating-point attn_mask", attn_mask.dtype.name)
    boolean = attn_mask is not None and attn_mask.dtype == np.bool_
    added, allowed = (None, attn_mask) if boolean else (attn_mask, None)
    draw = random.default.take() if dropout_p else None
    return scaled_dot_product_attention_(  # type: ignore[no-any-return]
        query, key, value, added, allowed, float(dropout_p), draw, bool(is_causal), scale, bool(enable_gqa)
    )


@op(cast=Cast.LOW, integers="refuse")
def scaled_dot_product_attention_(
    query: Array, key: Array, value: Array, added: Array | None, allowed: Index | None,
    dropout_p, draw, is_causal, scale, enable_gqa
):  # fmt: skip
    """`scaled_dot_product_attention` with its mask sorted by kind and its draw named by (seed, call)."""
    given = _Operands(query, key, value, added, allowed)
    a = _split_heads(given) if enable_gqa else given
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if any(isinstance(array, Taped) for array in given):
        out, lse = _on_tape(a, is_causal, scale, dropout_p, draw), None
    else:
        out, lse = _forward(_broadcast(a), is_causal, scale, dropout_p, draw)
    return _join_heads(out) if enable_gqa else out, Saved(**given._asdict(), lse=lse)


@scaled_dot_product_attention_.check
def scaled_dot_product_attention_check(
    query, key, value, added, allowed, dropout_p, draw, is_causal, scale, enable_gqa
):  # fmt: skip
    where, mask = "scaled_dot_product_attention", added if allowed is None else allowed
    q, k, v = (np.shape(a) for a in (query, key, value))
    got = f"query {list(q)}, key {list(k)}, value {list(v)}"
    if min(len(q), len(k), len(v)) < 2 + enable_gqa:
        raise ShapeError(where, f"query, key and value with at least {2 + enable_gqa} axes", got)
    if q[-1] != k[-1] or k[-2] != v[-2] or not k[-2]:
        raise ShapeError(where, f"key [..., S, {q[-1]}] and value [..., S, V], S at least 1", got)
    if enable_gqa and (k[-3] != v[-3] or not k[-3] or q[-3] % k[-3]):
        raise ShapeError(where, "query heads that the heads of key and value divide", got)
    one = (1,) * enable_gqa
    lead = _together(q[:-2], (*k[: -2 - enable_gqa], *one), (*v[: -2 - enable_gqa], *one))
    if lead is None:
        raise ShapeError(where, "leading axes that broadcast", got)
    if mask is not None and _together(scores := (*lead, q[-2], k[-2]), np.shape(mask)) != scores:
        raise ShapeError(where, f"attn_mask that broadcasts to {[*lead, q[-2], k[-2]]}", f"{list(np.shape(mask))}")


@scaled_dot_product_attention_.backward
def scaled_dot_product_attention_backward(dy, saved, needs, dropout_p, draw, is_causal, scale, enable_gqa):
    given = _Operands(saved.query, saved.key, saved.value, saved.added, saved.allowed)
    scale = 1 / math.sqrt(given.query.shape[-1]) if scale is None else scale
    if not enable_gqa:
        return *_backward(_broadcast(given), dy, saved.lse, needs, is_causal, scale, dropout_p, draw), None
    a = _broadcast(_split_heads(given))
    dy = dy.reshape(*a.query.shape[:-1], dy.shape[-1])
    dq, dk, dv, dadded = _backward(a, dy, saved.lse, needs, is_causal, scale, dropout_p, draw)
    dq, dadded = (None if g is None else _join_heads(g) for g in (dq, dadded))
    dk, dv = (None if g is None else g.sum(-3) for g in (dk, dv))
    return dq, dk, dv, dadded, None


class _Operands(NamedTuple):
    """query [..., L, E], key [..., S, E], value [..., S, V]; added and allowed [..., L, S] or None."""

    query: Array
    key: Array
    value: Array
    added: Array | None
    allowed: Array | None


class _Block(NamedTuple):
    """Some of the leading axes, rows first to end of the scores, and their first `width` columns."""

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


def _forward(a: _Operands, causal: bool, scale: float, dropout_p: float, draw: Any) -> tuple[Array, Array]:
    out = np.empty_like(a.query, shape=(*a.query.shape[:-1], a.value.shape[-1]))
    lse = np.empty_like(a.query, shape=a.query.shape[:-1], order="C")
    keep = _keep(a, dropout_p, draw)
    for block in _blocks(a, causal):
        weights = _scores(a, block, causal, scale)
        highest = weights.max(-1, keepdims=True)
        highest = np.where(highest == -np.inf, 0, highest)  # a row that looks nowhere
        weights -= highest
        total = np.exp(weights, out=weights).sum(-1, keepdims=True)
        lse[block.rows] = np.where(total == 0, np.inf, highest + np.log(total))[..., 0]
        if keep is not None:
            weights *= keep[block.scores]
        out[block.rows] = times(weights, a.value[block.columns]) / (np.where(total == 0, 1, total) * (1 - dropout_p))
    return out, lse


def _backward(
    a: _Operands, dy: Array, lse: Array, needs: Any, causal: bool, scale: float, dropout_p: float, draw: Any
) -> tuple[Any, Any, Any, Any]:
    dq, dk, dv = (np.zeros_like(x) if need else None for x, need in zip(a, needs[:3], strict=False))
    dadded = np.zeros_like(lse, shape=_scores_shape(a)) if needs[3] else None
    keep = _keep(a, dropout_p, draw)
    for block in _blocks(a, causal):
        weights, slopes = _scores(a, block, causal, scale), dy[block.rows]
        weights -= lse[block.rows][..., None]
        np.exp(weights, out=weights)
        kept = weights if keep is None else weights * keep[block.scores] / (1 - dropout_p)
        if dv is not None:
            dv[block.columns] += times(kept.swapaxes(-1, -2), slopes)
        if dq is None and dk is None and dadded is None:
            continue
        ds = times(slopes, a.value[block.columns].swapaxes(-1, -2))
        if keep is not None:
            ds *= keep[block.scores]
            ds /= 1 - dropout_p
        ds -= dot_along(weights, ds, -1)
        ds *= weights
        if dadded is not None:
            dadded[block.scores] = ds
        if dq is not None:
            dq[block.rows] = times(ds, a.key[block.columns]) * scale
        if dk is not None:
            dk[block.columns] += times(ds.swapaxes(-1, -2), a.query[block.rows] * scale)
    return dq, dk, dv, dadded


def _on_tape(a: _Operands, causal: bool, scale: float, dropout_p: float, draw: Any) -> Any:
    # All scores at once, out of steps that are ops.
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
        keep = backends.of(plain(total)).asarray(keep_mask(*draw, dropout_p, (*lead, *scores.shape[-2:])))
        weights = weights * (keep / (1 - dropout_p)).astype(dtype)
    return weights @ a.value


def _scores(a: _Operands, block: _Block, causal: bool, scale: float) -> Array:
    scores = times(a.query[block.rows] * scale, a.key[block.columns].swapaxes(-1, -2))
    if a.added is not None:
        scores += a.added[block.scores]
    if a.allowed is not None:
        np.copyto(scores, -np.inf, where=~a.allowed[block.scores])
    if causal and block.width > block.first + 1:
        ahead = scores[..., block.first :]  # the columns before are in every row's past
        np.copyto(ahead, -np.inf, where=_future(scores, 0, *ahead.shape[-2:]))
    return scores


def _future(like: Array, first: int, rows: int, width: int) -> Array:
    return np.arange(width, like=like) > np.arange(first, first + rows, like=like)[:, None]


def _blocks(a: _Operands, causal: bool) -> Iterator[_Block]:
    *lead, rows, columns = _scores_shape(a)
    step = max(1, min(rows, CAUSAL_ROWS if causal else rows, BLOCK // columns))
    room, steps = BLOCK // (step * columns), []
    for n in reversed(lead):
        steps.append(max(1, min(n, room)))
        room //= steps[-1]
    ranges = [[slice(i, i + s) for i in range(0, n, s)] for n, s in zip(lead, reversed(steps), strict=True)]
    for at in product(*ranges):
        for first in range(0, rows, step):
            end = min(first + step, rows)
            yield _Block(at, first, end, min(end, columns) if causal else columns)


def _scores_shape(a: _Operands) -> tuple[int, ...]:
    return (*a.query.shape[:-1], a.key.shape[-2])


def _keep(a: _Operands, dropout_p: float, draw: Any) -> Array | None:
    return None if draw is None else backends.of(a.query).asarray(keep_mask(*draw, dropout_p, _scores_shape(a)))


def _broadcast(a: _Operands) -> _Operands:
    """All with the same leading axes, as views."""
    lead = np.broadcast_shapes(*(array.shape[:-2] for array in a[:3]))
    scores = (*lead, a.query.shape[-2], a.key.shape[-2])
    three = (x if x.shape[:-2] == lead else np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in a[:3])
    return _Operands(*three, *(None if m is None else np.broadcast_to(m, scores) for m in a[3:]))


def _split_heads(a: _Operands) -> _Operands:
    """Query heads [..., H, L, E] as [..., heads of key, heads per head of key, L, E]; the others to match."""
    heads = a.key.shape[-3]

    def split(array: Any, parts: int) -> Any:
        if array is None or array.ndim < 3:
            return array
        n = array.shape[-3]
        return array.reshape(*array.shape[:-3], *((1, 1) if n == 1 else (n // parts, parts)), *array.shape[-2:])

    each = a.query.shape[-3] // heads
    parts = (each, 1, 1, each, each)
    return _Operands(*(split(array, n) for array, n in zip(a, parts, strict=True)))


def _join_heads(array: Array) -> Array:
    return array.reshape(*array.shape[:-4], array.shape[-4] * array.shape[-3], *array.shape[-2:])


def _together(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None

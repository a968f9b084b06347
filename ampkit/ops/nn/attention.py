"""Scaled dot-product attention, with scores and softmax in float32 and one rounding of the result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core import random
from ampkit.core.autograd.traced_array import TracedArray
from ampkit.core.op import Array, Index, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import broadcast_or_none
from ..shape.join_split import unbind
from ..shape.view import reshape, transpose
from .attention_math import Operands, backward, broadcast, forward, forward_traced, join_heads, split_heads

__all__ = ["scaled_dot_product_attention", "self_attention"]


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

    query [..., L, E], key [..., S, E], value [..., S, V] -> [..., L, V]; leading axes broadcast. attn_mask
    broadcasts to [..., L, S]: boolean, True where a query may attend, or added to the scores; a query that may attend
    to no key gets zeros. is_causal: query i attends to keys 0 to i. scale: by default 1 / sqrt(E). dropout_p: the
    probability of dropping a weight, drawn from the default stream. enable_gqa: grouped-query attention, where each
    head of key and value (axis -3) serves several consecutive heads of query.
    Scores, softmax and sums are float32 (float64 for float64 inputs), and the result is rounded once.
    Raises ShapeError for shapes that do not fit, ArgumentError for arguments that exclude each other.
    Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245 (grouped heads).
    """
    where = "scaled_dot_product_attention"
    if not 0 <= dropout_p < 1:
        raise ArgumentError(where, "dropout_p in [0, 1)", f"{dropout_p}")
    if is_causal and attn_mask is not None:
        raise ArgumentError(where, "is_causal or attn_mask", "both", "put the causal mask into attn_mask")
    if attn_mask is not None and attn_mask.array.dtype.kind in "iu":
        raise DTypeError(where, "a boolean or floating-point attn_mask", attn_mask.dtype.name)
    boolean = attn_mask is not None and attn_mask.array.dtype == np.bool_
    added, allowed = (None, attn_mask) if boolean else (attn_mask, None)
    draw = random.default.take(query.array, key.array, value.array) if dropout_p else None
    return scaled_dot_product_attention_(
        query, key, value, added, allowed, float(dropout_p), draw, bool(is_causal), scale, bool(enable_gqa)
    )


@op(cast=Cast.LOW, integers="refuse")
def scaled_dot_product_attention_(
    query: Array, key: Array, value: Array, added: Array | None, allowed: Index | None,
    dropout_p, draw, is_causal, scale, enable_gqa
):  # fmt: skip
    """`scaled_dot_product_attention` with an additive or a boolean mask, and the draw (seed, call) for dropout."""
    operands = Operands(query, key, value, added, allowed)
    a = split_heads(operands) if enable_gqa else operands
    out, lse = _output(a, is_causal, scale, dropout_p, draw)
    return join_heads(out) if enable_gqa else out, Saved(**operands._asdict(), lse=lse)


def _output(a: Operands, causal: bool, scale: float | None, dropout_p: float, draw: Any) -> tuple[Any, Any]:
    # (output, log-sum-exp of each row; None if traced).
    scale = 1 / math.sqrt(a.query.shape[-1] or 1) if scale is None else scale
    if any(isinstance(array, TracedArray) for array in a):
        return forward_traced(a, causal, scale, dropout_p, draw), None
    return forward(broadcast(a), causal, scale, dropout_p, draw)


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
    lead = broadcast_or_none(q[:-2], (*k[: -2 - enable_gqa], *one), (*v[: -2 - enable_gqa], *one))
    if lead is None:
        raise ShapeError(where, "leading axes that broadcast", got)
    if mask is not None and broadcast_or_none(scores := (*lead, q[-2], k[-2]), np.shape(mask)) != scores:
        raise ShapeError(where, f"attn_mask that broadcasts to {[*lead, q[-2], k[-2]]}", f"{list(np.shape(mask))}")


@scaled_dot_product_attention_.backward
def scaled_dot_product_attention_backward(dy, saved, needs, dropout_p, draw, is_causal, scale, enable_gqa):
    operands = Operands(saved.query, saved.key, saved.value, saved.added, saved.allowed)
    scale = 1 / math.sqrt(operands.query.shape[-1] or 1) if scale is None else scale
    if not enable_gqa:
        return *backward(broadcast(operands), dy, saved.lse, needs, is_causal, scale, dropout_p, draw), None
    a = broadcast(split_heads(operands))
    dy = dy.reshape(*a.query.shape[:-1], dy.shape[-1])
    dq, dk, dv, dadded = backward(a, dy, saved.lse, needs, is_causal, scale, dropout_p, draw)
    dq, dadded = (None if g is None else join_heads(g) for g in (dq, dadded))
    dk, dv = (None if g is None else g.sum(-3) for g in (dk, dv))
    return dq, dk, dv, dadded, None


# self-attention of a packed projection (query, key and value in one array). PyTorch has no such op; on a CPU it is one
# op in place of nine that split, transpose and join heads, with one copy instead of three.


def self_attention(input: Tensor, num_heads: int, dropout_p: float = 0.0, is_causal: bool = False) -> Tensor:
    """Multi-head `scaled_dot_product_attention` of a packed projection.

    input [N, T, 3 E]: query, key and value of each position, each of `num_heads` heads -> [N, T, E]. dropout_p,
    is_causal, precision: as there.
    Raises ShapeError for another number of axes or a width that 3 num_heads does not divide, ArgumentError for
    dropout_p outside of [0, 1).
    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.
    """
    if not 0 <= dropout_p < 1:
        raise ArgumentError("self_attention", "dropout_p in [0, 1)", f"{dropout_p}")
    if input.is_cuda:  # cuDNN takes the strided views of query, key and value
        return self_attention_by_ops(input, num_heads, dropout_p, is_causal)
    draw = random.default.take(input.array) if dropout_p else None
    return self_attention_(input, num_heads, float(dropout_p), draw, bool(is_causal))


def self_attention_by_ops(input: Tensor, num_heads: int, dropout_p: float, is_causal: bool) -> Tensor:
    """`self_attention` composed of ops that PyTorch has."""
    _check_packed(tuple(input.shape), num_heads)
    n, t, width = input.shape
    parts = unbind(reshape(input, (n, t, 3, num_heads, width // (3 * num_heads))), 2)
    query, key, value = (transpose(part, 1, 2) for part in parts)
    heads = scaled_dot_product_attention(query, key, value, None, dropout_p, is_causal)
    return reshape(transpose(heads, 1, 2), (n, t, width // 3))


@op(cast=Cast.LOW, integers="refuse")
def self_attention_(input: Array, num_heads, dropout_p, draw, is_causal):
    """`self_attention` with the draw (seed, call) for dropout."""
    out, lse = _output(Operands(*split_qkv(input, num_heads)), is_causal, None, dropout_p, draw)
    return out.swapaxes(1, 2).reshape(*input.shape[:2], input.shape[2] // 3), Saved(input=input, lse=lse)


self_attention_.check(lambda input, num_heads, dropout_p, draw, is_causal: _check_packed(np.shape(input), num_heads))


def _check_packed(shape: tuple[int, ...], num_heads: Any) -> None:
    if not isinstance(num_heads, int) or isinstance(num_heads, bool) or num_heads < 1:
        raise ArgumentError("self_attention", "num_heads from 1", repr(num_heads))
    if len(shape) != 3 or shape[2] % (3 * num_heads) or not all(shape[1:]):
        needs = f"input [N, T, width], T at least 1, a width that 3 x {num_heads} heads divide"
        raise ShapeError("self_attention", needs, f"{list(shape)}")


@self_attention_.backward
def self_attention_backward(dy, saved, needs, num_heads, dropout_p, draw, is_causal):
    operands = Operands(*split_qkv(saved.input, num_heads))
    scale = 1 / math.sqrt(operands.query.shape[-1])
    dy = dy.reshape(*dy.shape[:2], num_heads, dy.shape[2] // num_heads).swapaxes(1, 2)
    grads = backward(operands, dy, saved.lse, (*needs * 3, None), is_causal, scale, dropout_p, draw)
    return np.stack([grad.swapaxes(1, 2) for grad in grads[:3]], 2).reshape(saved.input.shape)


def split_qkv(input: Any, num_heads: int) -> Any:
    """Query, key and value of a packed projection [N, T, 3 E]: [3, N, num_heads, T, E / num_heads], a view."""
    n, t, width = input.shape
    return input.reshape(n, t, 3, num_heads, width // (3 * num_heads)).transpose(2, 0, 3, 1, 4)

"""Scaled dot-product attention by products and a softmax, with scores in float32 as in the op."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....base.dtypes import bool_, finfo
from ....base.errors import ArgumentError
from ..graph import Graph, Value
from ..registry import onnx_op
from ..trace import WHERE


@onnx_op("scaled_dot_product_attention")
def scaled_dot_product_attention(
    g: Graph, query: Value, key: Value, value: Value, added: Value | None, allowed: Value | None,
    dropout_p: float, draw: Any, is_causal: bool, scale: float | None, enable_gqa: bool,
) -> Any:  # fmt: skip
    _need_no_dropout(g, dropout_p)
    if not enable_gqa:
        scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
        lengths = query.shape[-2], key.shape[-2]
        return _attention(g, query, key, value, added, allowed, lengths if is_causal else None, scale, key.ndim)
    return _grouped(g, query, key, value, added, allowed, is_causal, scale)


@onnx_op("self_attention")
def self_attention(g: Graph, input: Value, num_heads: int, dropout_p: float, draw: Any, is_causal: bool) -> Any:
    _need_no_dropout(g, dropout_p)
    _, t, width = input.shape
    each = width // (3 * num_heads)
    packed = g.transpose(g.reshape(input, 0, 0, 3, num_heads, each), 2, 0, 3, 1, 4)
    query, key, value = (g.squeeze(part, 0) for part in g.Split(packed, g.ints(1, 1, 1), axis=0, outputs=3))
    lengths = (t, t) if is_causal else None
    found = _attention(g, query, key, value, None, None, lengths, 1 / math.sqrt(each), 4)
    return g.reshape(g.transpose(found, 0, 2, 1, 3), 0, 0, width // 3)


def _need_no_dropout(g: Graph, p: float) -> None:
    if p:
        cure = "pass dropout_p=0 where the module is not in training"
        raise ArgumentError(WHERE, "attention without dropout", f"dropout_p={p} of {g.label}", cure)


def _attention(
    g: Graph, query: Value, key: Value, value: Value, added: Value | None, allowed: Value | None, causal: Any,
    scale: float, rank: int,
) -> Any:  # fmt: skip
    """causal: the lengths of queries and keys, where each query attends to the keys up to its own. rank: of the key."""
    turned = g.transpose(key, *range(rank - 2), rank - 1, rank - 2)
    scores = g.MatMul(g.Mul(query, g.constant(scale)), turned)
    if causal is not None:
        lower = g.Trilu(g.Expand(g.constant(np.ones((1, 1), bool_)), g.sizes(*causal)), upper=0)
        allowed = lower if allowed is None else g.And(lower, allowed)
    if added is not None:
        scores = g.Add(scores, added)
    if allowed is not None:
        scores = g.Where(allowed, scores, g.constant(finfo(g.dtype).min))
    weights = g.Softmax(scores, axis=-1)
    zero = g.constant(0)
    if allowed is not None:  # a query that may attend to no key gets zeros
        weights = g.Where(allowed, weights, zero)
    if added is not None:  # or whose scores are all -inf
        weights = g.Where(g.IsNaN(weights), zero, weights)
    return g.MatMul(weights, value)


def _grouped(
    g: Graph, query: Value, key: Value, value: Value, added: Value | None, allowed: Value | None, causal: bool,
    scale: float | None,
) -> Any:  # fmt: skip
    """Heads of key and value (axis -3) that each serve several heads of query: repeated for each of them."""
    times = query.shape[-3] // key.shape[-3]

    def repeated(x: Value) -> Value:
        *lead, heads, length, width = x.shape
        wide = g.Expand(g.unsqueeze(x, x.ndim - 2), g.sizes(*lead, heads, times, length, width))
        shape = (*lead, heads * times, length, width)
        return Value(g.reshape(wide, *shape).name, g.dtype, shape)

    scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    lengths = (query.shape[-2], key.shape[-2]) if causal else None
    return _attention(g, query, repeated(key), repeated(value), added, allowed, lengths, scale, key.ndim)

"""Tangents of softmax, attention, pooling, and of fused layers."""

from __future__ import annotations

import math
from typing import Any

from ampkit.core.dispatch.forward_rules import TangentCall, backward_of, itself
from ampkit.core.op import Saved
from ampkit.core.tensor import Tensor

from ..indexing.gather_scatter import gather
from ..indexing.gather_scatter import scatter_ as scatter_op
from ..linalg.matmul import linear, matmul
from ..nn.attention import split_qkv
from ..nn.pool import flat_indices
from ..nn.softmax import softmax as softmax_op
from ..pointwise.rotary import rotary_embedding
from ..pointwise.smooth_activations import gelu
from ..shape.join_split import cat
from ..shape.triangular import tril


def softmax(call: TangentCall, dim: int, dtype: Any) -> Tensor | None:
    """The tangent of `softmax`, whose Jacobian is symmetric."""
    x, out = call.tangent(0), call.saved("out")
    if x is None or out is None:
        return None
    found = call.transposed(x, 0)
    return out * (x - (out * x).sum(dim, True)) if found is None else found


def log_softmax(call: TangentCall, dim: int, dtype: Any) -> Tensor | None:
    """The tangent of `log_softmax`."""
    x, out = call.tangent(0), call.saved("out")
    return None if x is None or out is None else x - (out.exp() * x).sum(dim, True)


def attention(
    call: TangentCall, dropout_p: float, draw: Any, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Tensor | None:
    """The tangent of `scaled_dot_product_attention` without dropout.

    It computes the weights once more, and their products with the tangents.
    """
    given = [call.saved(name) for name in ("query", "key", "value")]
    if draw is not None or enable_gqa or any(each is None for each in given):
        return None
    query, key, value = (each for each in given if each is not None)
    added, allowed = call.saved("added"), call.saved("allowed")
    if call.tangents[3] is not None or (added is None and call.given(3)):
        return None
    if allowed is None and call.given(4):
        return None
    scores = _scores(query, key, scale)
    if added is not None:
        scores = scores + added
    moved = [call.tangent(i) for i in range(3)]
    return _attended(scores, query, key, value, moved, allowed, is_causal, scale)


def _scores(query: Tensor, key: Tensor, scale: float | None) -> Tensor:
    scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    return matmul(query * scale, key.mT)


def _attended(
    scores: Tensor, query: Tensor, key: Tensor, value: Tensor, moved: list[Tensor | None], allowed: Tensor | None,
    is_causal: bool, scale: float | None,
) -> Tensor:  # fmt: skip
    if is_causal:
        allowed = tril(scores.new_ones(scores.shape[-2:])) > 0
    if allowed is not None:
        scores = scores.masked_fill(allowed.logical_not(), -math.inf)
    weights = softmax_op(scores, -1)
    if allowed is not None and not is_causal:  # rows that may attend to nothing
        weights = weights.masked_fill(allowed.logical_not(), 0.0)
    dquery, dkey, dvalue = moved
    found: Any = None if dvalue is None else matmul(weights, dvalue)
    if dquery is None and dkey is None:
        return found
    if dquery is not None and dkey is not None and dquery.shape[:-2] == query.shape[:-2]:
        dscores = _scores(cat([dquery, query], -1), cat([key, dkey], -1), _scale(query, scale))
    elif dquery is not None:
        dscores = _scores(dquery, key, scale)
        dscores = dscores if dkey is None else dscores + _scores(query, dkey, scale)
    else:
        dscores = _scores(query, dkey, scale)  # type: ignore[arg-type]  # one of the two has a tangent
    dweights = weights * (dscores - (weights * dscores).sum(-1, True))
    made: Tensor = matmul(dweights, value)
    return made if found is None else made + found


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale


def self_attention(call: TangentCall, num_heads: int, dropout_p: float, draw: Any, is_causal: bool) -> Tensor | None:
    """The tangent of `self_attention` without dropout."""
    x, moved = call.saved("input"), call.tangent(0)
    if draw is not None or x is None or moved is None or call.batched:
        return None
    query, key, value = map(Tensor, split_qkv(x.array, num_heads))
    directions: list[Tensor | None] = [Tensor(each) for each in split_qkv(moved.array, num_heads)]
    heads = _attended(_scores(query, key, None), query, key, value, directions, None, is_causal, None)
    return heads.transpose(1, 2).reshape(call.shape)


def linear_bias(call: TangentCall) -> Tensor | None:
    """The tangent of `linear` along its bias alone; else it is a product."""
    x, weight, bias = call.tangents
    return bias.expand(call.shape) if x is None and weight is None and bias is not None else None


def embedding(call: TangentCall, padding_idx: int | None) -> Tensor | None:
    """The tangent of `embedding`, unless it has a row without a gradient."""
    return None if padding_idx is not None else itself(call)


def scatter(call: TangentCall, dim: int) -> Tensor | None:
    """The tangent of `scatter`, for which the tangent of the last of repeated indices counts."""
    moved, _, src = call.tangents
    given, index = src if moved is None else moved, call.items.get("index")
    if given is None or index is None:
        return None
    base = given.new_zeros(call.shape) if moved is None else moved
    return scatter_op(base, dim, Tensor(index), 0.0 if src is None else src)


def rotary(call: TangentCall, interleaved: bool) -> Tensor | None:
    """The tangent of `rotary_embedding` along its input, whose pairs turn by the same angles."""
    x, cos, sin = call.tangent(0), call.saved("cos"), call.saved("sin")
    if x is None or cos is None or sin is None or any(tangent is not None for tangent in call.tangents[1:]):
        return None
    return rotary_embedding(x, cos, sin, interleaved)


def max_pool(call: TangentCall, return_indices: bool, **params: Any) -> Tensor | None:
    """The tangent of max pooling: the tangents at the places of the maxima."""
    x, geometry, argmax = call.tangents[0], call.items.get("geometry"), call.items.get("argmax")
    if x is None or geometry is None or argmax is None or call.batched:
        return None
    axes = len(geometry.input_size)
    lead = call.shape[: len(call.shape) - axes]
    places = flat_indices(argmax, geometry).reshape(*lead, math.prod(geometry.output_size))
    return gather(x.flatten(-axes), -1, Tensor(places)).reshape(call.shape)


def feed_forward(call: TangentCall, approximate: str) -> Tensor | None:
    """The tangent of `linear_gelu_linear`; the hidden layer is that of the call where its kernel kept it."""
    x, w1, b1, w2, b2 = (call.tangent(i) for i in range(5))
    if call.batched:
        return None
    input, weight, bias, weight2 = (call.saved(name) for name in ("input", "weight", "bias", "weight2"))
    before, hidden = call.saved("before"), call.saved("hidden")
    if before is None or hidden is None:
        before = linear(input, weight, bias)
        hidden = gelu(before, approximate)
    moved = _linear(input, weight, x, w1, b1)
    if moved is not None:
        saved, dtype = Saved(input=before.array), moved.array.dtype
        found = backward_of(gelu, moved.array, saved, (dtype,), call.plan.compute, approximate=approximate)
        moved = Tensor(found[0])
    return _linear(hidden, weight2, moved, w2, b2)


def _linear(x: Any, weight: Any, dx: Any, dweight: Any, dbias: Any) -> Any:
    # The tangent of linear(x, weight, bias), None where nothing moves.
    found = None if dx is None else linear(dx, weight, None if dweight is not None else dbias)
    if dweight is not None:
        second = linear(x, dweight, dbias)
        found = second if found is None else found.add_(second)
    elif found is None and dbias is not None:
        found = dbias.expand(*x.shape[:-1], len(dbias))
    return found

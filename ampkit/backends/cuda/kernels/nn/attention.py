"""Kernel of attention: cuDNN's, which never has the scores in memory; 16-bit operands, scores and softmax in float32.

A mask becomes what is added to the scores, with the lowest number of the format for -inf: rows that may look nowhere
then hold numbers, and are set to what the reference gives them, zeros and a log-sum-exp of +inf; so they also weigh
nothing in the backward. What dropout keeps is drawn as the reference draws it, and is the one thing as large as the
scores. Other situations run the reference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.libs import attention_slices
from ampkit.backends.cuda.libs.cudnn import aligned
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS
from ampkit.base.dtypes import LOW, DType, bfloat16, float16, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.attention import scaled_dot_product_attention_ as attention
from ampkit.ops.nn.dropout import mask

Array = Any  # a CuPy array

WIDEST = 256  # elements of a head
LANE = 8  # elements that are read together: heads, and the steps between rows, are multiples
HIDDEN = {float16: np.float32(-65504), bfloat16: np.float32(-1e30)}  # far below any score, and far from overflow


def _fits(
    query: Array, key: Array, value: Array, added: Any, allowed: Any, dropout_p: float, draw: Any, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> bool:  # fmt: skip
    if query.dtype not in LOW or not query.dtype == key.dtype == value.dtype:
        return False
    if scale is not None and not scale > 0:
        return False
    alone = -2 - enable_gqa  # heads of key and value serve several of query with enable_gqa
    alike = key.shape[:-2] == value.shape[:-2] and query.shape[:alone] == key.shape[:alone]
    heads = (query.shape[-1], value.shape[-1])
    fit = alike and query.ndim == key.ndim <= 4 and not any(n % LANE or not 0 < n <= WIDEST for n in heads)
    rows = math.prod(query.shape[:-1])
    most = max(query.size, key.size, value.size, rows * key.shape[-2] if dropout_p else 0)
    return fit and rows > 0 and most <= MAX_ELEMENTS and not _library(query).trouble()


def _library(array: Array) -> Any:
    return backends.backend_of(array).cudnn  # type: ignore[attr-defined]  # of the CUDA backend


@attention.on("cuda", when=_fits)
def attention_cuda(
    query: Array, key: Array, value: Array, added: Any, allowed: Any, dropout_p: float, draw: Any, is_causal: bool,
    scale: float | None, enable_gqa: bool, *, dtype: DType,
) -> Any:  # fmt: skip
    if dtype != query.dtype:
        return NotImplemented
    q, k, v = (_ready(array) for array in (query, key, value))
    bias, looks = _mask(added, allowed, q.shape[2:3] + k.shape[2:3], dtype)
    out = _laid_like(q, (*q.shape[:-1], v.shape[-1]))
    lse = backends.backend_of(q).empty((*q.shape[:-1], 1), float32)
    dropped = _dropped(q, k, dropout_p, draw)
    if not _library(q).attention_forward(q, k, v, bias, dropped, out, lse, is_causal, _scale(query, scale)):
        return NotImplemented
    if looks is not None:
        np.copyto(out, 0, where=~looks)
        np.copyto(lse, np.inf, where=~looks)
    sums, out = lse.reshape(_rows_of_scores(query, key, enable_gqa)), _of_rank(out, query.ndim)
    return out, Saved(query=query, key=key, value=value, added=added, allowed=allowed, lse=sums, out=out)


@attention_cuda.backward
def attention_cuda_backward(
    dy: Array, saved: Saved, needs: Any, dropout_p: float, draw: Any, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> Any:  # fmt: skip
    if needs[3] or dy.dtype != saved.query.dtype:  # which the reference can do with what is saved
        return NotImplemented
    q, k, v = (_ready(array) for array in (saved.query, saved.key, saved.value))
    bias, _ = _mask(saved.added, saved.allowed, q.shape[2:3] + k.shape[2:3], q.dtype)
    lse, gradients = saved.lse.reshape(*q.shape[:-1], 1), tuple(_laid_like(x, x.shape) for x in (q, k, v))
    dropped = _dropped(q, k, dropout_p, draw)
    given, out = (q, k, v, bias, dropped), _four(saved.out)
    call = attention_slices.Backward(*given, out, lse, _ready(dy), gradients, is_causal, _scale(saved.query, scale))
    if not attention_slices.attention_backward(_library(q), call):
        return NotImplemented
    operands = saved.query, saved.key, saved.value
    dq, dk, dv = (_as_wanted(*three) for three in zip(gradients, operands, needs[:3], strict=True))
    return dq, dk, dv, None, None


def _scale(query: Array, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)


def _four(array: Array) -> Array:
    return array[(None,) * (4 - array.ndim)]


def _of_rank(array: Array, ndim: int) -> Array:
    return array[(0,) * (4 - ndim)]


def _ready(array: Array) -> Array:
    """[..., rows, width] as four axes that cuDNN reads: rows packed and in whole lanes; a copy where it must be."""
    array = _four(array)
    size = array.dtype.itemsize
    steps = [step for n, step in zip(array.shape[:-1], array.strides, strict=False) if n > 1]
    fit = array.strides[-1] == size and all(step > 0 and not step % (LANE * size) for step in steps)
    return array if fit and aligned(array) else array.copy()


def _laid_like(array: Array, shape: tuple[int, ...]) -> Array:
    """New memory for `shape`, its axes in memory in the order of those of `array`: heads go back into their row."""
    order = sorted(range(3), key=lambda axis: (-array.strides[axis], axis))
    home = backends.backend_of(array).empty((*(shape[axis] for axis in order), shape[3]), array.dtype)
    return home.transpose(*(order.index(axis) for axis in range(3)), 3)


def _mask(added: Any, allowed: Any, scores: tuple[int, int], dtype: DType) -> tuple[Any, Any]:
    """What is added to the scores, four axes in `dtype`, and which rows look somewhere, as the last axis is 1."""
    mask = added if allowed is None else allowed
    if mask is None:
        return None, None
    mask = _four(mask)
    if mask.shape[3] != scores[1]:
        mask = np.broadcast_to(mask, (*mask.shape[:3], scores[1]))
    if allowed is None:
        wide = mask.astype(float32)
        looks, bias = wide.max(3, keepdims=True) != -np.inf, np.maximum(wide, HIDDEN[dtype])
    else:
        looks, bias = mask.any(3, keepdims=True), np.where(mask, np.float32(0), HIDDEN[dtype])
    return bias.astype(dtype, order="C"), looks


def _dropped(query: Array, key: Array, dropout_p: float, draw: Any) -> tuple[Array, Array, Array] | None:
    """What dropout keeps of the weights, 1 or 0, by how much it grows, and one over that."""
    if draw is None:
        return None
    kept = mask(query, dropout_p, *draw, (*query.shape[:3], key.shape[2]))
    numbers = backends.backend_of(query).empty((8,), float32)  # each of the two where cuDNN can read it
    numbers[:4], numbers[4:] = 1 / (1 - dropout_p), 1 - dropout_p
    return kept.astype(query.dtype), numbers[:1], numbers[4:5]


def _rows_of_scores(query: Array, key: Array, grouped: bool) -> tuple[int, ...]:
    # The shape in which the reference saves its sums: by head of key and head of query that it serves.
    if not grouped:
        return tuple(query.shape[:-1])
    heads = key.shape[-3]
    return (*query.shape[:-3], heads, query.shape[-3] // heads, query.shape[-2])


def _as_wanted(gradient: Array, like: Array, need: DType | None) -> Array | None:
    if need is None:
        return None
    gradient = _of_rank(gradient, like.ndim)
    return gradient if gradient.dtype == need else backends.backend_of(gradient).cast(gradient, need)

"""Scaled dot-product attention by cuDNN's fused kernel: 16-bit operands, scores and softmax in float32, not stored.

A mask is passed as a bias added to the scores, with a large negative number for -inf. Rows that are masked completely
are then overwritten with what the reference returns, zeros and a log-sum-exp of +inf, which also gives them zero
gradients. The dropout mask has the bits of the reference and is the only array as large as the scores. Everything else
runs the reference.
"""

from __future__ import annotations

import math
import warnings
from operator import eq
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import cast
from ampkit.backends.cuda.libs import attention_slices
from ampkit.backends.cuda.libs.cudnn import AttentionArrays, aligned, library_of
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS
from ampkit.backends.determinism import are_deterministic_algorithms_enabled
from ampkit.base.dtypes import LOW, Array, DType, bfloat16, float16, float32
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.attention import register_attention
from ampkit.ops.nn.dropout import mask

OLDEST = (8, 0)  # compute capability that cuDNN's attention needs
MAX_HEAD_SIZE = 256
LANE = 8  # head sizes and row strides are multiples of this many elements
MASKED = {float16: np.float32(-65504), bfloat16: np.float32(-1e30)}  # far below any score, far from overflow


def _fits(
    query: Array, key: Array, value: Array, added: Any, allowed: Any, dropout_p: float, draw: Any, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> bool:  # fmt: skip
    if query.dtype not in LOW or not query.dtype == key.dtype == value.dtype:
        return False
    if scale is not None and not scale > 0:
        return False
    lead = -2 - enable_gqa  # with enable_gqa the heads axis differs: a head of key serves several of query
    same_batch = key.shape[:-2] == value.shape[:-2] and query.shape[:lead] == key.shape[:lead]
    head_sizes = (query.shape[-1], value.shape[-1])
    if not same_batch or not query.ndim == key.ndim <= 4:
        return False
    if any(n % LANE or not 0 < n <= MAX_HEAD_SIZE for n in head_sizes):
        return False
    rows = math.prod(query.shape[:-1])
    largest = max(query.size, key.size, value.size, rows * key.shape[-2] if dropout_p else 0)
    gpu: Any = backends.backend_of(query)
    return rows > 0 and largest <= MAX_ELEMENTS and gpu.capability >= OLDEST and not gpu.cudnn.unavailable_reason()


def _attended(
    query: Array, key: Array, value: Array, given: Any, p: float, draw: Any, causal: bool, scale: float, grouped: bool,
    dtype: DType,
) -> Any:  # fmt: skip
    q, k, v = (_dense(array) for array in (query, key, value))
    bias, visible = _mask(given, q.shape[2:3] + k.shape[2:3], dtype)
    out = _empty_like(q, (*q.shape[:-1], v.shape[-1]))
    lse = backends.backend_of(q).empty((*q.shape[:-1], 1), float32)
    call = AttentionArrays(q, k, v, bias, _dropout(q, k, p, draw), out, lse, causal, scale)
    if not library_of(q).attention_forward(call):
        raise UnsupportedError
    if visible is not None:
        np.copyto(out, 0, where=~visible)
        np.copyto(lse, np.inf, where=~visible)
    return _from_4d(out, query.ndim), {"lse": lse.reshape(_lse_shape(query, key, grouped))}


def _gradients(dy: Array, saved: Saved, given: Any, needs: Any, p: float, draw: Any, causal: bool, scale: float) -> Any:
    if needs[3] or dy.dtype != saved.query.dtype:  # the reference computes it from the same saved arrays
        raise UnsupportedError
    q, k, v = (_dense(array) for array in (saved.query, saved.key, saved.value))
    bias, _ = _mask(given, q.shape[2:3] + k.shape[2:3], q.dtype)
    lse, gradients = saved.lse.reshape(*q.shape[:-1], 1), _empty_gradients(q, k, v)
    arrays = q, k, v, bias, _dropout(q, k, p, draw), _to_4d(saved.out), lse
    call = AttentionArrays(*arrays, causal, scale, _dense(dy), gradients)
    if not attention_slices.attention_backward(library_of(q), call):
        _warn_of_reference(q, k, p)
        raise UnsupportedError
    inputs = saved.query, saved.key, saved.value
    dq, dk, dv = (_as_needed(*each) for each in zip(gradients, inputs, needs[:3], strict=True))
    return dq, dk, dv, None


def _warn_of_reference(query: Array, key: Array, dropout_p: float) -> None:
    # Once per kind: what the reference stores is what cuDNN's kernels are there to avoid.
    warned, deterministic = library_of(query).warned, are_deterministic_algorithms_enabled()
    if (kind := (bool(dropout_p), deterministic)) in warned:
        return
    warned.add(kind)
    size = 4 * math.prod(query.shape[:-1]) * key.shape[-2] / 2**20
    what = f"{'deterministic ' * deterministic}backward{' with dropout' * bool(dropout_p)}"
    said = f"scaled_dot_product_attention: cuDNN has no {what} on this GPU: "
    said += f"the reference runs, with several arrays of scores, {size:.1f} MiB each"
    cure = "\nhelp: use_deterministic_algorithms(False)" + ", or dropout_p=0" * bool(dropout_p)
    warnings.warn(said + cure * deterministic, RuntimeWarning, stacklevel=2)


def _to_4d(array: Array) -> Array:
    """`array` with leading axes of 1 up to four axes."""
    return array[(None,) * (4 - array.ndim)]


def _from_4d(array: Array, ndim: int) -> Array:
    return array[(0,) * (4 - ndim)]


def _dense(array: Array) -> Array:
    """[..., rows, width] as four axes, copied unless cuDNN can read it: rows contiguous, strides multiples of LANE."""
    array = _to_4d(array)
    size = array.dtype.itemsize
    steps = [step for n, step in zip(array.shape[:-1], array.strides, strict=False) if n > 1]
    fit = array.strides[-1] == size and all(step > 0 and not step % (LANE * size) for step in steps)
    return array if fit and aligned(array) else array.copy()


def _empty_like(array: Array, shape: tuple[int, ...]) -> Array:
    """Allocate `shape` with the axis order in memory of `array`, so that merging the heads needs no copy."""
    order = sorted(range(3), key=lambda axis: (-array.strides[axis], axis))
    out = backends.backend_of(array).empty((*(shape[axis] for axis in order), shape[3]), array.dtype)
    return out.transpose(*(order.index(axis) for axis in range(3)), 3)


def _empty_gradients(*operands: Array) -> tuple[Array, ...]:
    """An array per operand. Where these are all parts of one projection [N, L, features], so are their gradients.

    Then the gradient of the projection is there without a copy.
    """
    query, size = operands[0], operands[0].itemsize
    (n, _, length, _), step, place = query.shape, query.strides[2] // size, min(x.data.ptr for x in operands)
    starts, end = dict[int, slice](), 0
    for x in sorted(operands, key=lambda x: x.data.ptr):
        heads, width = x.shape[1], x.shape[3]
        strides = (length * step * size, width * size, step * size)
        apart = any(m > 1 and s != want for m, s, want in zip(x.shape, x.strides[:3], strides, strict=False))
        if apart or x.shape[2] != length or x.data.ptr != place + end * size:
            return tuple([_empty_like(one, one.shape) for one in operands])
        starts[x.data.ptr] = slice(end, end := end + heads * width)
    if end != step or len(starts) != len(operands):
        return tuple([_empty_like(one, one.shape) for one in operands])
    rows = backends.backend_of(query).empty((n, length, step), query.dtype)
    parts = [rows[..., starts[x.data.ptr]].reshape(n, length, x.shape[1], x.shape[3]) for x in operands]
    return tuple([part.transpose(0, 2, 1, 3) for part in parts])


def _mask(mask: Any, scores: tuple[int, int], dtype: DType) -> tuple[Any, Any]:
    """The bias of the scores, four axes in `dtype`, and which rows are not fully masked, bool [..., 1]."""
    if mask is None:
        return None, None
    mask = _to_4d(mask)
    if mask.shape[3] != scores[1]:
        mask = np.broadcast_to(mask, (*mask.shape[:3], scores[1]))
    if mask.dtype != np.bool_:
        wide = mask.astype(float32)
        visible, bias = wide.max(3, keepdims=True) != -np.inf, np.maximum(wide, MASKED[dtype])
    else:
        visible, bias = mask.any(3, keepdims=True), np.where(mask, np.float32(0), MASKED[dtype])
    return bias.astype(dtype, order="C"), visible


def _dropout(query: Array, key: Array, dropout_p: float, draw: Any) -> tuple[Array, Array, Array] | None:
    """The dropout mask [N, H, L, S] of 1 and 0, 1 / (1 - p) and 1 - p as float32 [1]; None: no dropout."""
    if draw is None:
        return None
    keep = mask(query, dropout_p, *draw, (*query.shape[:3], key.shape[2]))
    factors = backends.backend_of(query).empty((8,), float32)  # both 16-byte aligned, as cuDNN needs
    factors[:4], factors[4:] = 1 / (1 - dropout_p), 1 - dropout_p
    return keep.astype(query.dtype), factors[:1], factors[4:5]


def _lse_shape(query: Array, key: Array, grouped: bool) -> tuple[int, ...]:
    """The shape in which the reference saves lse: [..., H, L]; with enable_gqa [..., G, H / G, L]."""
    if not grouped:
        return tuple(query.shape[:-1])
    heads = key.shape[-3]
    return (*query.shape[:-3], heads, query.shape[-3] // heads, query.shape[-2])


def _as_needed(gradient: Array, like: Array, need: DType | None) -> Array | None:
    """`gradient` with the rank of `like`, cast to `need`; None if it is not needed."""
    return None if need is None else cast(_from_4d(gradient, like.ndim), need)


register_attention("cuda", _attended, _gradients, _fits, dtypes=eq)

"""CPU kernel of attention by tiles: oneDNN's products and softmax, with one tile of scores in memory at a time.

A tile is a range of heads and of rows (queries) with all columns (keys) that they attend to: under a causal mask half
of all scores. Scores and their softmax are float32; the weights are rounded to the operands' dtype where the CPU
multiplies that fast. The backward recomputes the weights of each tile; short 16-bit rows of weights are saved instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.gemm import as_rows, matmul_into
from ampkit.backends.cpu.onednn.library import has_fast_matmul, library
from ampkit.backends.cpu.onednn.primitive import HostArray, empty
from ampkit.backends.cpu.onednn.reorder import FORMATS, fill, memory_order, reorder
from ampkit.backends.cpu.onednn.softmax import row_gradients, rows_of
from ampkit.backends.cpu.score_tiles import DropoutMask, ScoreMask, Tile, apply_causal_mask, has_fully_masked_row
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.core.random import keep_mask
from ampkit.ops.nn.attention import scaled_dot_product_attention_ as attention
from ampkit.ops.nn.attention import self_attention_ as self_attention
from ampkit.ops.nn.attention import split_qkv
from ampkit.ops.pointwise.selection import select_or_zero

# Fewer rows waste less on masked scores; more rows amortize the packing of the other operand for AMX.
ROWS_PER_TILE, ROWS_PER_TILE_AMX = 64, 256
SCORES_PER_TILE = 1 << 20  # 4 MiB of float32, shared by the threads
# In 16 bits, weights are saved for the backward if a row has at most this many times the operands' width: that saves
# 5 % of a GPT's step for 8 % of its memory. In float32 the softmax is a smaller part of a step: saving does not pay.
MAX_SAVED_ROW = 4
MIN_SCORES = 1 << 12  # below, the reference is as fast


class _TiledAttention:
    """Attention of operands [heads, rows, width], made contiguous and cast to a dtype with fast products."""

    def __init__(self, query: HostArray, key: HostArray, value: HostArray, mask: ScoreMask, causal: bool, scale: float):
        dtype = self.dtype = query.dtype if _all_steps_are_fast(query.dtype) else float32
        self.query, self.key, self.value = (_as_heads(in_format(array, dtype)) for array in (query, key, value))
        self.mask, self.causal, self.scale = mask, causal, scale
        self.rows_per_tile = ROWS_PER_TILE if dtype == float32 else ROWS_PER_TILE_AMX
        self.saves_weights = dtype != float32 and self.key.shape[1] <= MAX_SAVED_ROW * self.query.shape[2]

    def tiles(self) -> Iterator[Tile]:
        heads, rows, columns = len(self.query), self.query.shape[1], self.key.shape[1]
        heads_per_tile = max(1, SCORES_PER_TILE // (min(self.rows_per_tile, rows) * columns))
        for first in range(0, heads, heads_per_tile):
            for start in range(0, rows, self.rows_per_tile):
                end = min(start + self.rows_per_tile, rows)
                yield Tile(
                    slice(first, first + heads_per_tile), slice(start, end), slice(end if self.causal else columns)
                )

    def weights(self, tile: Tile) -> HostArray:
        """The softmax of a tile's scores, [heads, rows, columns]."""
        query, key = self.query[tile.heads, tile.rows], self.key[tile.heads, tile.columns]
        scores = empty((*query.shape[:2], key.shape[1]), float32)
        _matmul(query, key.swapaxes(1, 2), scores, self.scale)
        if self.causal:
            apply_causal_mask(scores)
        self.mask.apply(scores, tile)
        found = rows_of(as_rows(scores), "softmax", self.dtype)
        assert found is not None, "checked by _all_steps_are_fast"
        return found.reshape(scores.shape)

    def forward(self, dropout: DropoutMask | None, dropout_p: float, dtype: DType) -> tuple[HostArray, list[HostArray]]:
        """Return the output [heads, rows, width] in `dtype`, and the weights of each tile if they are to be saved.

        dropout: the mask of the weights; None for no dropout.
        """
        out, saved = empty((*self.query.shape[:2], self.value.shape[-1]), dtype), []
        for tile in self.tiles():
            weights = self.weights(tile)
            if self.saves_weights:
                saved.append(weights)
            if dropout is not None:
                weights = select_or_zero(weights, dropout.of(tile))
            part = out[tile.heads, tile.rows]
            _matmul(weights, self.value[tile.heads, tile.columns], part, 1 / (1 - dropout_p))
        return out, saved

    @property
    def accumulates(self) -> bool:
        """Whether several tiles contribute to the gradient of one key."""
        return bool(self.rows_per_tile < self.query.shape[1])

    def backward(
        self, grad: HostArray, dropout: DropoutMask | None, dropout_p: float, saved: list[HostArray],
        grad_buffers: Sequence[HostArray], dmask: HostArray | None = None,
    ) -> None:  # fmt: skip
        """Write the gradients of query, key and value to `grad_buffers`, and that of an added mask to `dmask`.

        grad: of the output, [heads, rows, width] in self.dtype. saved: the weights that `forward` returned.
        grad_buffers have the operands' shapes, in self.dtype, or in float32 to round sums once. dmask: float32
        [heads, rows, columns].
        """
        dq, dk, dv = grad_buffers
        if accumulate := self.accumulates:
            dk[...] = 0
            dv[...] = 0
        for number, tile in enumerate(self.tiles()):
            heads, rows, columns = tile
            weights, dy = saved[number] if self.saves_weights else self.weights(tile), grad[heads, rows]
            ds = empty(weights.shape, self.dtype)
            _matmul(dy, self.value[heads, columns].swapaxes(1, 2), ds, self.scale / (1 - dropout_p))
            dropped = weights
            if dropout is not None:
                mask = dropout.of(tile)
                dropped, ds = select_or_zero(weights, mask), select_or_zero(ds, mask)
            _matmul(dropped.swapaxes(1, 2), dy, dv[heads, columns], accumulate=accumulate)
            ds = _softmax_backward(ds, weights)
            _matmul(ds, self.key[heads, columns], dq[heads, rows])
            _matmul(ds.swapaxes(1, 2), self.query[heads, rows], dk[heads, columns], accumulate=accumulate)
            if dmask is not None:
                np.divide(in_format(ds, float32), np.float32(self.scale), out=dmask[tile])
        if dropout is not None:
            dv /= np.float32(1 - dropout_p)


def _as_heads(array: HostArray) -> HostArray:
    # [..., rows, width] as [heads, rows, width], contiguous
    if not array.flags.c_contiguous:
        dense = empty(array.shape, array.dtype)
        if min(array.strides) <= 0 or not reorder(array, dense):
            dense[...] = array
        array = dense
    return array.reshape(-1, *array.shape[-2:])


def _in_axis_order(found: HostArray, order: list[int], dtype: DType) -> HostArray:
    # `found` in `dtype`, with the memory order of an operand's axes: merging heads is then a view, not a copy.
    if order == sorted(order):
        return in_format(found, dtype)
    out = empty([found.shape[i] for i in order], dtype).transpose(np.argsort(order))
    if not reorder(found, out):
        out[...] = in_format(found, dtype)
    return out


@cache
def _all_steps_are_fast(dtype: DType) -> bool:
    """Whether oneDNN has fast implementations of all steps in `dtype`, tried once on a small tile."""
    if not has_fast_matmul(dtype):
        return False
    rows = empty((1, 16, 16), dtype)
    rows[...] = 0
    wide, found = empty(rows.shape, float32), rows_of(as_rows(np.zeros(rows.shape, np.float32)), "softmax", dtype)
    steps = [matmul_into(rows, rows, wide), matmul_into(rows, rows, rows.copy()), found is not None]
    back = dtype == float32 or row_gradients(as_rows(rows), as_rows(rows), "softmax", dtype) is not None
    return all(steps) and back


def _matmul(first: HostArray, second: HostArray, out: HostArray, scale: float = 1.0, accumulate: bool = False) -> None:
    """Write scale * first @ second to `out`, or add first @ second to it."""
    if matmul_into(first, second, out, scale=scale, accumulate=accumulate):
        return
    # oneDNN has no product of 16-bit operands for some shapes.
    wide = empty(out.shape, float32)
    done = matmul_into(in_format(first, float32), in_format(second, float32), wide, scale=scale)
    assert done, "oneDNN has float32 products on every CPU"
    if accumulate:
        out += wide
    else:
        fill(out, wide)


def _softmax_backward(ds: HostArray, weights: HostArray) -> HostArray:
    found = row_gradients(as_rows(ds), as_rows(weights), "softmax", ds.dtype)
    if found is not None:
        return found.reshape(ds.shape)
    ds -= np.einsum("hrc,hrc->hr", ds, weights)[..., None]  # in float32, without AVX-512
    ds *= weights
    return ds


def _fits(query: HostArray, key: HostArray, value: HostArray, added: Any, allowed: Any, *params: Any) -> bool:
    is_causal, scale, enable_gqa = params[2:]
    if scale == 0 or library() is None or query.dtype not in FORMATS or not _all_steps_are_fast(float32):
        return False
    batch = query.shape[: -2 - enable_gqa]  # with enable_gqa, a head of key and value serves several of query
    same_batch = batch == key.shape[: -2 - enable_gqa] == value.shape[: -2 - enable_gqa]
    same_batch = same_batch and key.shape[:-2] == value.shape[:-2]
    square = query.shape[-2] == key.shape[-2] or not is_causal
    profitable = query.size > 0 and math.prod(query.shape[:-1]) * key.shape[-2] >= MIN_SCORES
    fits = same_batch and square and profitable and query.dtype == key.dtype == value.dtype
    return fits and not has_fully_masked_row(added, allowed)


def _tiled_attention(
    query: Any, key: Any, value: Any, added: Any, allowed: Any, causal: bool, scale: float | None
) -> _TiledAttention:
    mask = ScoreMask(added, allowed, query.shape[:-2], (query.shape[-2], key.shape[-2]))
    return _TiledAttention(query, key, value, mask, causal, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)


def _repeat_heads(query: HostArray, array: HostArray) -> HostArray:
    # Key or value with each head repeated for the heads of query that it serves.
    return array if array.shape[:-2] == query.shape[:-2] else np.repeat(array, query.shape[-3] // array.shape[-3], -3)


def _sum_repeated_heads(gradient: HostArray, array: HostArray) -> HostArray:
    # The gradient summed over the repetitions of each head of `array`.
    several = len(gradient) // max(1, math.prod(array.shape[:-2]))
    return gradient if several == 1 else gradient.reshape(-1, several, *gradient.shape[1:]).sum(1)


def _dropout_mask(query: HostArray, key: HostArray, dropout_p: float, draw: Any) -> DropoutMask | None:
    # The scale 1 / (1 - p) of dropout is a factor of the products instead.
    size = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    return None if draw is None else DropoutMask(partial(keep_mask, draw[0], draw[1], dropout_p), size)


@attention.on("cpu", when=_fits)
def attention_cpu(
    query: HostArray, key: HostArray, value: HostArray, added: Any, allowed: Any, dropout_p: float, draw: Any,
    is_causal: bool, scale: float | None, enable_gqa: bool, *, dtype: DType,
) -> Any:  # fmt: skip
    keys, values = (_repeat_heads(query, array) for array in (key, value))
    a, dropout = (
        _tiled_attention(query, keys, values, added, allowed, is_causal, scale),
        _dropout_mask(query, key, dropout_p, draw),
    )
    out, weights = a.forward(dropout, dropout_p, dtype if a.dtype == query.dtype else a.dtype)
    no_lse = np.empty(0, np.float32)  # log-sum-exp of rows: this kernel's backward does not use it
    operands = query, key, value
    # Save the contiguous copies in place of the operands, so that these can be freed.
    flat = zip((a.query, a.key, a.value), operands, strict=True)
    parts = [x.reshape(y.shape) if (x.size, x.dtype) == (y.size, y.dtype) else y for x, y in flat]
    named = dict(zip(("query", "key", "value"), parts, strict=True))
    orders = [memory_order(x) for x in operands]
    saved = Saved(**named, added=added, allowed=allowed, lse=no_lse, orders=orders, weights=weights)
    return _in_axis_order(out.reshape(*query.shape[:-1], -1), orders[0], dtype), saved


@attention_cpu.backward
def attention_cpu_backward(
    dy: HostArray, saved: Saved, needs: Any, dropout_p: float, draw: Any, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> Any:  # fmt: skip
    operands = saved.query, saved.key, saved.value
    keys, values = (_repeat_heads(saved.query, array) for array in operands[1:])
    a = _tiled_attention(saved.query, keys, values, saved.added, saved.allowed, is_causal, scale)
    dropout = _dropout_mask(saved.query, saved.key, dropout_p, draw)
    # sums are float32 before they are rounded
    dtype = float32 if a.accumulates or dropout is not None or a.key.size != saved.key.size else a.dtype
    grad_buffers = [empty(x.shape, dtype) for x in (a.query, a.key, a.value)]
    dmask = empty((len(a.query), a.query.shape[1], a.key.shape[1]), float32) if needs[3] else None
    a.backward(_as_heads(in_format(dy, a.dtype)), dropout, dropout_p, saved.weights, grad_buffers, dmask)
    pairs = zip(grad_buffers, operands, saved.orders, needs[:3], strict=True)
    gradients = [
        _in_axis_order(_sum_repeated_heads(g, x).reshape(x.shape), order, need) if need else None
        for g, x, order, need in pairs
    ]
    if dmask is not None:
        dmask = in_format(dmask, needs[3]).reshape(*saved.query.shape[:-1], -1)
    return *gradients, dmask, None


# self_attention: query, key and value are one array

_INPUT_ORDER = (1, 3, 0, 2, 4)  # transposes what `split_qkv` returns back to [batch, positions, parts, heads, width]


def _self_attention_fits(input: HostArray, num_heads: int, dropout_p: float, draw: Any, is_causal: bool) -> bool:
    return _fits(*split_qkv(input, num_heads), None, None, dropout_p, draw, is_causal, None, False)


@self_attention.on("cpu", when=_self_attention_fits)
def self_attention_cpu(
    input: HostArray, num_heads: int, dropout_p: float, draw: Any, is_causal: bool, *, dtype: DType
) -> Any:
    split = split_qkv(input, num_heads)
    parts = _as_heads(split).reshape(split.shape)
    a = _tiled_attention(parts[0], parts[1], parts[2], None, None, is_causal, None)
    dropout = _dropout_mask(parts[0], parts[0], dropout_p, draw)
    out, weights = a.forward(dropout, dropout_p, dtype if a.dtype == input.dtype else a.dtype)
    result = (
        _in_axis_order(out.reshape(parts.shape[1:]), [0, 2, 1, 3], dtype).swapaxes(1, 2).reshape(*input.shape[:2], -1)
    )
    # Save the contiguous parts in place of the input: the same elements in another order.
    return result, Saved(input=parts.transpose(_INPUT_ORDER), lse=np.empty(0, np.float32), weights=weights)


@self_attention_cpu.backward
def self_attention_cpu_backward(
    dy: HostArray, saved: Saved, needs: Any, num_heads: int, dropout_p: float, draw: Any, is_causal: bool
) -> HostArray:
    parts, lead = saved.input.transpose(2, 0, 3, 1, 4), dy.shape[:2]
    a = _tiled_attention(parts[0], parts[1], parts[2], None, None, is_causal, None)
    dropout = _dropout_mask(parts[0], parts[0], dropout_p, draw)
    found = empty((3, *a.query.shape), float32 if a.accumulates or dropout is not None else a.dtype)
    grad = in_format(dy, a.dtype).reshape(*lead, num_heads, -1).swapaxes(1, 2)
    a.backward(_as_heads(grad), dropout, dropout_p, saved.weights, list(found))
    return (
        _in_axis_order(found.reshape(parts.shape), list(_INPUT_ORDER), needs[0])
        .transpose(_INPUT_ORDER)
        .reshape(*lead, -1)
    )

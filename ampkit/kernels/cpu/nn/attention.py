"""CPU kernel of attention by tiles of scores: oneDNN's products around a compiled softmax (attention.cpp).

A tile is a range of heads, of rows (queries) and of columns (keys), small enough for the second-level cache; under a
causal mask, tiles right of the diagonal are left out. The softmax of a row is computed online, one tile after another.
Scores and sums are float32; the weights are rounded to the operands' dtype where the CPU multiplies that fast. The
backward computes the weights again, from two statistics of each row (Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import FLOATS, KINDS, Function, available, memory_order
from ampkit.backends.cpu.onednn.gemm import matmul_into
from ampkit.backends.cpu.onednn.library import has_fast_matmul, library
from ampkit.backends.cpu.onednn.primitive import HostArray, empty
from ampkit.backends.cpu.threads import get_num_threads
from ampkit.base.dtypes import DType, float32
from ampkit.base.memory_format import inverse
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.attention import register_attention
from ampkit.ops.nn.attention import self_attention_ as self_attention
from ampkit.ops.nn.attention import split_qkv

ROWS, COLUMNS = 128, 512  # of a tile
SCORES_PER_THREAD = 1 << 17  # in a tile: half a MiB of float32
MIN_SCORES = 1 << 12  # below, the reference is as fast

_weights, _output = Function("attention_weights", "aaaaappiif"), Function("attention_output", "aaaf")
_dots, _gradients = Function("attention_dots", "aaa"), Function("attention_gradients", "aaaaaaappiiffa")


class _Masks:
    """What the scores [heads, rows, columns] are masked by: attn_mask, the causal limit, dropout.

    mask: added to the scores if it is floating point, else False where a row may not attend. draw: (seed, call).
    """

    def __init__(self, mask: Any, causal: bool, p: float, draw: Any, lead: tuple[int, ...], size: tuple[int, int]):
        self.causal, self.size, self.keep_scale = causal, size, 1 / (1 - p)
        threshold = round(p * 65536)  # see random.keep_mask
        self.dropout = None if draw is None else np.array([*draw, threshold, *size], np.uint64)
        self.view, self.offsets = None, None
        if mask is not None:
            full = np.broadcast_to(mask, (*lead, *size))
            steps = [stride // mask.itemsize for stride in full.strides[: len(lead)]]
            each = np.unravel_index(np.arange(math.prod(lead)), lead) if lead else ()
            self.offsets = sum((i * step for i, step in zip(each, steps, strict=True)), np.zeros(math.prod(lead), int))
            self.view = full[(0,) * len(lead)]

    def of(self, heads: slice, rows: slice, columns: slice) -> tuple[Any, ...]:
        """The arguments of the kernels for a tile: mask, offsets, dropout, first weight, limit."""
        mask = None if self.view is None else self.view[rows, columns]
        offsets = None if self.offsets is None else address(self.offsets[heads])
        first = (heads.start * self.size[0] + rows.start) * self.size[1] + columns.start
        limit = rows.start + 1 - columns.start if self.causal else self.size[1]
        return mask, offsets, None if self.dropout is None else address(self.dropout), first, limit


class _TiledAttention:
    """Attention of operands [heads, rows, width], made contiguous and cast to a dtype with fast products."""

    def __init__(self, query: HostArray, key: HostArray, value: HostArray, masks: _Masks, scale: float | None):
        dtype = self.dtype = query.dtype if has_fast_matmul(query.dtype) else float32
        self.query, self.key, self.value = (_as_heads(in_format(array, dtype)) for array in (query, key, value))
        self.masks, self.scale = masks, 1 / math.sqrt(query.shape[-1]) if scale is None else scale

    @property
    def in_one_tile(self) -> bool:
        """Whether one tile has all scores of a head, so that no gradient is a sum over tiles."""
        return bool(self.query.shape[1] <= ROWS and self.key.shape[1] <= COLUMNS)

    def row_tiles(self) -> Iterator[tuple[slice, slice, list[slice]]]:
        """Ranges of heads and rows, and those of the columns that the rows attend to."""
        heads, rows, columns = len(self.query), self.query.shape[1], self.key.shape[1]
        in_head = min(ROWS, rows) * min(COLUMNS, columns)
        several = max(1, SCORES_PER_THREAD * get_num_threads() // in_head)
        for first in range(0, heads, several):
            for start in range(0, rows, ROWS):
                end = min(start + ROWS, rows)
                width = min(end, columns) if self.masks.causal else columns
                tiles = [slice(i, min(i + COLUMNS, width)) for i in range(0, width, COLUMNS)]
                yield slice(first, min(first + several, heads)), slice(start, end), tiles

    def forward(self, dtype: DType) -> tuple[HostArray, HostArray]:
        """Return the output [heads, rows, width] in `dtype`, and statistics of each row for `backward`."""
        out = empty((*self.query.shape[:2], self.value.shape[-1]), dtype)
        statistics = empty((*out.shape[:2], 2), float32)
        statistics[...] = -np.inf, 0  # the largest score, the sum of exp(score - largest)
        for heads, rows, tiles in self.row_tiles():
            query, found = self.query[heads, rows], statistics[heads, rows]
            sums = empty((*query.shape[:2], out.shape[-1]), float32)
            for columns in tiles:
                scores = _product(query, self.key[heads, columns])
                weights = scores if self.dtype == float32 else empty(scores.shape, self.dtype)
                _weights(weights, scores, found, sums, *self.masks.of(heads, rows, columns), self.scale)
                _matmul(weights, self.value[heads, columns], sums, accumulate=columns.start > 0)
            _output(out[heads, rows], sums, found, self.masks.keep_scale)
        return out, statistics

    def backward(
        self, dy: HostArray, out: HostArray, statistics: HostArray, grad_buffers: Sequence[HostArray],
        dmask: HostArray | None = None,
    ) -> None:  # fmt: skip
        """Write the gradients of query, key and value to `grad_buffers`, and that of an added mask to `dmask`.

        dy: gradient of `out`, [heads, rows, width] in self.dtype. out, statistics: what `forward` returned.
        grad_buffers have the operands' shapes, in self.dtype, or in float32 to round sums once. dmask: float32
        [heads, rows, columns].
        """
        dq, dk, dv = grad_buffers
        accumulate = not self.in_one_tile
        for gradient in (dk, dv):  # of keys that no query attends to, or to be added to
            gradient[:, 0 if accumulate else self.query.shape[1] if self.masks.causal else gradient.shape[1] :] = 0
        dots = empty((*dy.shape[:2], 1), float32)
        _dots(dots, dy, out)
        for heads, rows, tiles in self.row_tiles():
            query, grad = self.query[heads, rows], dy[heads, rows]
            for columns in tiles:
                key, tile = self.key[heads, columns], (heads, rows, columns)
                scores, dw = _product(query, key), _product(grad, self.value[heads, columns])
                same = self.dtype == float32
                weights, ds = (x if same else empty(x.shape, self.dtype) for x in (scores, dw))
                known = statistics[heads, rows], dots[heads, rows], *self.masks.of(*tile)
                scales = self.scale, self.masks.keep_scale
                _gradients(weights, ds, scores, dw, *known, *scales, None if dmask is None else dmask[tile])
                _matmul(weights.swapaxes(1, 2), grad, dv[heads, columns], accumulate)
                _matmul(ds, key, dq[heads, rows], accumulate=columns.start > 0)
                _matmul(ds.swapaxes(1, 2), query, dk[heads, columns], accumulate)


def _product(first: HostArray, second: HostArray) -> HostArray:
    """first @ second^T of each head, in float32."""
    out = empty((*first.shape[:2], second.shape[1]), float32)
    _matmul(first, second.swapaxes(1, 2), out)
    return out


def _as_heads(array: HostArray) -> HostArray:
    # [..., rows, width] as [heads, rows, width], contiguous and aligned
    if not (array.flags.c_contiguous and array.flags.aligned):
        dense = empty(array.shape, array.dtype)
        copy(dense, array)
        array = dense
    return array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:])


def _in_axis_order(found: HostArray, order: tuple[int, ...], dtype: DType) -> HostArray:
    # `found` in `dtype`, with the memory order of an operand's axes: merging heads is then a view, not a copy.
    if order == tuple(range(found.ndim)):
        return in_format(found, dtype)
    out = empty([found.shape[i] for i in order], dtype).transpose(inverse(order))
    copy(out, found)
    return out


def _matmul(first: HostArray, second: HostArray, out: HostArray, accumulate: bool = False) -> None:
    """Write first @ second to `out`, or add it to `out`."""
    if matmul_into(first, second, out, accumulate=accumulate):
        return
    # oneDNN has no product of 16-bit operands for some shapes.
    wide = empty(out.shape, float32)
    done = matmul_into(in_format(first, float32), in_format(second, float32), wide)
    assert done, "oneDNN has float32 products on every CPU"
    if accumulate:
        out += wide
    else:
        copy(out, wide)


def _fits(query: HostArray, key: HostArray, value: HostArray, added: Any, allowed: Any, *params: Any) -> bool:
    if library() is None or not available() or not query.dtype == key.dtype == value.dtype or query.dtype not in FLOATS:
        return False
    grouped, mask = params[-1], allowed if added is None else added
    batch = query.shape[: -2 - grouped]  # in groups, a head of key and value serves several of query
    same_batch = key.shape[:-2] == value.shape[:-2] and batch == key.shape[: -2 - grouped]
    known_mask = mask is None or (mask.dtype in KINDS and mask.flags.aligned)
    profitable = query.size > 0 and math.prod(query.shape[:-1]) * key.shape[-2] >= MIN_SCORES
    return same_batch and known_mask and profitable and value.shape[-1] > 0


def _masks(query: HostArray, key: HostArray, causal: bool, p: float, draw: Any, mask: Any = None) -> _Masks:
    return _Masks(mask, causal, p, draw, query.shape[:-2], (query.shape[-2], key.shape[-2]))


def _repeat_heads(query: HostArray, array: HostArray) -> HostArray:
    # Key or value with each head repeated for the heads of query that it serves.
    return array if array.shape[:-2] == query.shape[:-2] else np.repeat(array, query.shape[-3] // array.shape[-3], -3)


def _sum_repeated_heads(gradient: HostArray, array: HostArray) -> HostArray:
    # The gradient summed over the repetitions of each head of `array`.
    several = len(gradient) // max(1, math.prod(array.shape[:-2]))
    return gradient if several == 1 else gradient.reshape(-1, several, *gradient.shape[1:]).sum(1)


def _attended(
    query: HostArray, key: HostArray, value: HostArray, mask: Any, p: float, draw: Any, causal: bool, scale: float,
    grouped: bool, dtype: DType,
) -> Any:  # fmt: skip
    keys, values = (_repeat_heads(query, array) for array in (key, value))
    masks = _masks(query, key, causal, p, draw, mask)
    a = _TiledAttention(query, keys, values, masks, scale)
    found, statistics = a.forward(dtype)
    operands = query, key, value
    # Save the contiguous copies in place of the operands, so that these can be freed.
    flat = zip((a.query, a.key, a.value), operands, strict=True)
    parts = [x.reshape(y.shape) if (x.size, x.dtype) == (y.size, y.dtype) else y for x, y in flat]
    named = dict(zip(("query", "key", "value"), parts, strict=True))
    orders = [memory_order(x.strides) for x in operands]
    out = _in_axis_order(found.reshape(*query.shape[:-1], value.shape[-1]), orders[0], dtype)
    return out, {**named, "statistics": statistics, "orders": orders}


def _gradients_of(
    dy: HostArray, saved: Saved, mask: Any, needs: Any, p: float, draw: Any, causal: bool, scale: float
) -> Any:
    operands = saved.query, saved.key, saved.value
    keys, values = (_repeat_heads(saved.query, array) for array in operands[1:])
    masks = _masks(saved.query, saved.key, causal, p, draw, mask)
    a = _TiledAttention(saved.query, keys, values, masks, scale)
    # sums are float32 before they are rounded
    dtype = a.dtype if a.in_one_tile and a.key.size == saved.key.size else float32
    grad_buffers = [empty(x.shape, dtype) for x in (a.query, a.key, a.value)]
    dmask = np.zeros((len(a.query), a.query.shape[1], a.key.shape[1]), np.float32) if needs[3] else None
    a.backward(_as_heads(in_format(dy, a.dtype)), _as_heads(saved.out), saved.statistics, grad_buffers, dmask)
    pairs = zip(grad_buffers, operands, saved.orders, needs[:3], strict=True)
    gradients = [
        _in_axis_order(_sum_repeated_heads(g, x).reshape(x.shape), order, need) if need else None
        for g, x, order, need in pairs
    ]
    if dmask is not None:
        dmask = in_format(dmask, needs[3]).reshape(*saved.query.shape[:-1], saved.key.shape[-2])
    return *gradients, dmask


register_attention("cpu", _attended, _gradients_of, _fits)


# self_attention: query, key and value are one array

_INPUT_ORDER = (1, 3, 0, 2, 4)  # transposes what `split_qkv` returns back to [batch, positions, parts, heads, width]


def _self_attention_fits(input: HostArray, num_heads: int, dropout_p: float, draw: Any, is_causal: bool) -> bool:
    return _fits(*split_qkv(input, num_heads), None, None, False)


@self_attention.on("cpu", when=_self_attention_fits)
def self_attention_cpu(
    input: HostArray, num_heads: int, dropout_p: float, draw: Any, is_causal: bool, *, dtype: DType
) -> Any:
    split = split_qkv(input, num_heads)
    parts = _as_heads(split).reshape(split.shape)
    a = _TiledAttention(parts[0], parts[1], parts[2], _masks(parts[0], parts[0], is_causal, dropout_p, draw), None)
    out, statistics = a.forward(dtype)
    out = _in_axis_order(out.reshape(parts.shape[1:]), (0, 2, 1, 3), dtype).swapaxes(1, 2).reshape(*input.shape[:2], -1)
    # Save the contiguous parts in place of the input: the same elements in another order.
    return out, Saved(input=parts.transpose(_INPUT_ORDER), out=out, statistics=statistics)


@self_attention_cpu.backward
def self_attention_cpu_backward(
    dy: HostArray, saved: Saved, needs: Any, num_heads: int, dropout_p: float, draw: Any, is_causal: bool
) -> HostArray:
    parts, lead = saved.input.transpose(2, 0, 3, 1, 4), dy.shape[:2]
    a = _TiledAttention(parts[0], parts[1], parts[2], _masks(parts[0], parts[0], is_causal, dropout_p, draw), None)
    found = empty((3, *a.query.shape), a.dtype if a.in_one_tile else float32)
    grad, out = (x.reshape(*lead, num_heads, -1).swapaxes(1, 2) for x in (in_format(dy, a.dtype), saved.out))
    a.backward(_as_heads(grad), _as_heads(out), saved.statistics, list(found))
    return _in_axis_order(found.reshape(parts.shape), _INPUT_ORDER, needs[0]).transpose(_INPUT_ORDER).reshape(*lead, -1)

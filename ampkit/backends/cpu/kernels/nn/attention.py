"""Kernel of attention: oneDNN's products and softmax over tiles, so that no more than a tile of scores is in memory.

A tile is some heads, some rows and all columns that these rows may look at; under a causal mask that is half of them
on the whole. Scores and their softmax are float32; where the machine multiplies a 16-bit format, the weights are
rounded to it. The gradients make each tile's weights again, but for short rows of 16 bits, whose weights are kept.
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
from ampkit.backends.cpu.score_tiles import Keep, Mask, Tile, hide_future, looks_nowhere
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.core.random import keep_mask
from ampkit.ops.indexing.masks import kept
from ampkit.ops.nn.attention import scaled_dot_product_attention_ as attention
from ampkit.ops.nn.attention import self_attention_ as self_attention
from ampkit.ops.nn.attention import split_qkv

# Rows of a tile. Few rows compute little of the future in vain; many seldom pack the other operand for matrix units.
ROWS, ROWS_OF_UNITS = 64, 256
ROOM = 1 << 20  # scores in a tile: 4 MiB of float32, of which each thread works on a part
# Rows of weights up to so many times as long as the operands' are kept for the gradients, in 16 bits: at 4 times 5 % of
# a GPT's time for 8 % of its memory. The softmax of float32 is a smaller part of its step: there it does not pay.
SHORT = 4
WORTH = 1 << 12  # scores; below, the reference is as fast


class _Heads:
    """The operands as [heads, rows, width], contiguous, in a format in which the machine multiplies."""

    def __init__(self, query: HostArray, key: HostArray, value: HostArray, mask: Mask, causal: bool, scale: float):
        kind = self.kind = query.dtype if _complete(query.dtype) else float32
        self.query, self.key, self.value = (_flat(in_format(array, kind)) for array in (query, key, value))
        self.mask, self.causal, self.scale = mask, causal, scale
        self.step = ROWS if kind == float32 else ROWS_OF_UNITS
        self.short = kind != float32 and self.key.shape[1] <= SHORT * self.query.shape[2]

    def tiles(self) -> Iterator[Tile]:
        heads, rows, columns = len(self.query), self.query.shape[1], self.key.shape[1]
        several = max(1, ROOM // (min(self.step, rows) * columns))
        for first in range(0, heads, several):
            for start in range(0, rows, self.step):
                end = min(start + self.step, rows)
                yield Tile(slice(first, first + several), slice(start, end), slice(end if self.causal else columns))

    def weights(self, tile: Tile) -> HostArray:
        """Softmax of a tile's scores, [heads, rows, columns]."""
        query, key = self.query[tile.heads, tile.rows], self.key[tile.heads, tile.columns]
        scores = empty((*query.shape[:2], key.shape[1]), float32)
        _times(query, key.swapaxes(1, 2), scores, self.scale)
        if self.causal:
            hide_future(scores)
        self.mask.apply(scores, tile)
        found = rows_of(as_rows(scores), "softmax", self.kind)
        assert found is not None, "`_complete` has seen it"
        return found.reshape(scores.shape)

    def attend(self, keep: Keep | None, dropout_p: float, dtype: DType) -> tuple[HostArray, list[HostArray]]:
        """The answer, [heads, rows, width] in `dtype`, and the weights of its tiles, if they are short.

        keep: what dropout keeps of the weights; None for all.
        """
        out, held = empty((*self.query.shape[:2], self.value.shape[-1]), dtype), []
        for tile in self.tiles():
            weights = self.weights(tile)
            if self.short:
                held.append(weights)
            if keep is not None:
                weights = kept(weights, keep.of(tile))
            part = out[tile.heads, tile.rows]
            _times(weights, self.value[tile.heads, tile.columns], part, 1 / (1 - dropout_p))
        return out, held

    @property
    def adds(self) -> bool:
        """Whether several tiles add to the gradients of one key."""
        return bool(self.step < self.query.shape[1])

    def slopes(
        self, slope: HostArray, keep: Keep | None, dropout_p: float, held: list[HostArray],
        grad_buffers: Sequence[HostArray], dmask: HostArray | None = None,
    ) -> None:  # fmt: skip
        """Write the gradients of query, key and value to `grad_buffers`, and that of an added mask to `dmask`.

        slope [heads, rows, width], in `kind`: that of the answer. held: the weights that `attend` gave. grad_buffers
        are like the operands, in `kind`, or in float32 to round sums once. dmask: [heads, rows, columns] of float32.
        """
        dq, dk, dv = grad_buffers
        if several := self.adds:
            dk[...] = 0
            dv[...] = 0
        for number, tile in enumerate(self.tiles()):
            heads, rows, columns = tile
            weights, dy = held[number] if self.short else self.weights(tile), slope[heads, rows]
            ds = empty(weights.shape, self.kind)
            _times(dy, self.value[heads, columns].swapaxes(1, 2), ds, self.scale / (1 - dropout_p))
            used = weights
            if keep is not None:
                mask = keep.of(tile)
                used, ds = kept(weights, mask), kept(ds, mask)
            _times(used.swapaxes(1, 2), dy, dv[heads, columns], accumulate=several)
            ds = _through_softmax(ds, weights)
            _times(ds, self.key[heads, columns], dq[heads, rows])
            _times(ds.swapaxes(1, 2), self.query[heads, rows], dk[heads, columns], accumulate=several)
            if dmask is not None:
                np.divide(in_format(ds, float32), np.float32(self.scale), out=dmask[tile])
        if keep is not None:
            dv /= np.float32(1 - dropout_p)


def _flat(array: HostArray) -> HostArray:
    # [..., rows, width] as [heads, rows, width], contiguous
    if not array.flags.c_contiguous:
        home = empty(array.shape, array.dtype)
        if min(array.strides) <= 0 or not reorder(array, home):
            home[...] = array
        array = home
    return array.reshape(-1, *array.shape[-2:])


def _laid(found: HostArray, order: list[int], dtype: DType) -> HostArray:
    # `found` in `dtype`, its axes in memory in `order`, an operand's: heads split off a row go back without a copy.
    if order == sorted(order):
        return in_format(found, dtype)
    home = empty([found.shape[i] for i in order], dtype).transpose(np.argsort(order))
    if not reorder(found, home):
        home[...] = in_format(found, dtype)
    return home


@cache
def _complete(dtype: DType) -> bool:
    """Whether every step can be made in `dtype`, and is worth it: tried once, on a small tile."""
    if not has_fast_matmul(dtype):
        return False
    rows = empty((1, 16, 16), dtype)
    rows[...] = 0
    wide, found = empty(rows.shape, float32), rows_of(as_rows(np.zeros(rows.shape, np.float32)), "softmax", dtype)
    steps = [matmul_into(rows, rows, wide), matmul_into(rows, rows, rows.copy()), found is not None]
    back = dtype == float32 or row_gradients(as_rows(rows), as_rows(rows), "softmax", dtype) is not None
    return all(steps) and back


def _times(first: HostArray, second: HostArray, out: HostArray, scale: float = 1.0, accumulate: bool = False) -> None:
    """Write scale * first @ second to `out`, or add first @ second to it."""
    if matmul_into(first, second, out, scale=scale, accumulate=accumulate):
        return
    # Of 16-bit operands oneDNN does not multiply every shape.
    wide = empty(out.shape, float32)
    done = matmul_into(in_format(first, float32), in_format(second, float32), wide, scale=scale)
    assert done, "oneDNN multiplies float32 everywhere"
    if accumulate:
        out += wide
    else:
        fill(out, wide)


def _through_softmax(ds: HostArray, weights: HostArray) -> HostArray:
    found = row_gradients(as_rows(ds), as_rows(weights), "softmax", ds.dtype)
    if found is not None:
        return found.reshape(ds.shape)
    ds -= np.einsum("hrc,hrc->hr", ds, weights)[..., None]  # in float32, without AVX-512
    ds *= weights
    return ds


def _fits(query: HostArray, key: HostArray, value: HostArray, added: Any, allowed: Any, *params: Any) -> bool:
    is_causal, scale, enable_gqa = params[2:]
    if scale == 0 or library() is None or query.dtype not in FORMATS or not _complete(float32):
        return False
    alone = query.shape[: -2 - enable_gqa]  # heads of key and value serve several of query with enable_gqa
    alike = (
        alone == key.shape[: -2 - enable_gqa] == value.shape[: -2 - enable_gqa] and key.shape[:-2] == value.shape[:-2]
    )
    square = query.shape[-2] == key.shape[-2] or not is_causal
    worth = query.size > 0 and math.prod(query.shape[:-1]) * key.shape[-2] >= WORTH
    fit = alike and square and worth and query.dtype == key.dtype == value.dtype
    return fit and not looks_nowhere(added, allowed)


def _heads(query: Any, key: Any, value: Any, added: Any, allowed: Any, causal: bool, scale: float | None) -> _Heads:
    mask = Mask(added, allowed, query.shape[:-2], (query.shape[-2], key.shape[-2]))
    return _Heads(query, key, value, mask, causal, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)


def _for_each(query: HostArray, array: HostArray) -> HostArray:
    # Key or value with its heads repeated for each head of query that they serve.
    return array if array.shape[:-2] == query.shape[:-2] else np.repeat(array, query.shape[-3] // array.shape[-3], -3)


def _of_all(gradient: HostArray, array: HostArray) -> HostArray:
    # The sum over the heads that one head of `array` served.
    several = len(gradient) // max(1, math.prod(array.shape[:-2]))
    return gradient if several == 1 else gradient.reshape(-1, several, *gradient.shape[1:]).sum(1)


def _keep(query: HostArray, key: HostArray, dropout_p: float, draw: Any) -> Keep | None:
    # By how much what is kept grows enters as a factor of products.
    size = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    return None if draw is None else Keep(partial(keep_mask, draw[0], draw[1], dropout_p), size)


@attention.on("cpu", when=_fits)
def attention_cpu(
    query: HostArray, key: HostArray, value: HostArray, added: Any, allowed: Any, dropout_p: float, draw: Any,
    is_causal: bool, scale: float | None, enable_gqa: bool, *, dtype: DType,
) -> Any:  # fmt: skip
    keys, values = (_for_each(query, array) for array in (key, value))
    a, keep = _heads(query, keys, values, added, allowed, is_causal, scale), _keep(query, key, dropout_p, draw)
    out, weights = a.attend(keep, dropout_p, dtype if a.kind == query.dtype else a.kind)
    nothing = np.empty(0, np.float32)  # the sums of rows, a statistic that this kernel does not keep
    given = query, key, value
    # Heads that were brought together once are kept so, in place of what was given: that may go.
    flat = zip((a.query, a.key, a.value), given, strict=True)
    parts = [x.reshape(y.shape) if (x.size, x.dtype) == (y.size, y.dtype) else y for x, y in flat]
    named = dict(zip(("query", "key", "value"), parts, strict=True))
    orders = [memory_order(x) for x in given]
    saved = Saved(**named, added=added, allowed=allowed, lse=nothing, orders=orders, weights=weights)
    return _laid(out.reshape(*query.shape[:-1], -1), orders[0], dtype), saved


@attention_cpu.backward
def attention_cpu_backward(
    dy: HostArray, saved: Saved, needs: Any, dropout_p: float, draw: Any, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> Any:  # fmt: skip
    given = saved.query, saved.key, saved.value
    keys, values = (_for_each(saved.query, array) for array in given[1:])
    a = _heads(saved.query, keys, values, saved.added, saved.allowed, is_causal, scale)
    keep = _keep(saved.query, saved.key, dropout_p, draw)
    # sums are float32 before they are rounded
    kind = float32 if a.adds or keep is not None or a.key.size != saved.key.size else a.kind
    grad_buffers = [empty(x.shape, kind) for x in (a.query, a.key, a.value)]
    dmask = empty((len(a.query), a.query.shape[1], a.key.shape[1]), float32) if needs[3] else None
    a.slopes(_flat(in_format(dy, a.kind)), keep, dropout_p, saved.weights, grad_buffers, dmask)
    pairs = zip(grad_buffers, given, saved.orders, needs[:3], strict=True)
    gradients = [_laid(_of_all(g, x).reshape(x.shape), order, need) if need else None for g, x, order, need in pairs]
    if dmask is not None:
        dmask = in_format(dmask, needs[3]).reshape(*saved.query.shape[:-1], -1)
    return *gradients, dmask, None


# of one array that holds query, key and value

_BACK = (1, 3, 0, 2, 4)  # the axes of `split_qkv` in the order of the input's: positions, then parts, then heads


def _fits_one(input: HostArray, num_heads: int, dropout_p: float, draw: Any, is_causal: bool) -> bool:
    return _fits(*split_qkv(input, num_heads), None, None, dropout_p, draw, is_causal, None, False)


@self_attention.on("cpu", when=_fits_one)
def self_attention_cpu(
    input: HostArray, num_heads: int, dropout_p: float, draw: Any, is_causal: bool, *, dtype: DType
) -> Any:
    turned = split_qkv(input, num_heads)
    parts = _flat(turned).reshape(turned.shape)
    a = _heads(parts[0], parts[1], parts[2], None, None, is_causal, None)
    keep = _keep(parts[0], parts[0], dropout_p, draw)
    out, weights = a.attend(keep, dropout_p, dtype if a.kind == input.dtype else a.kind)
    home = _laid(out.reshape(parts.shape[1:]), [0, 2, 1, 3], dtype).swapaxes(1, 2).reshape(*input.shape[:2], -1)
    # The parts are kept in place of the input: the same elements, in another shape.
    return home, Saved(input=parts.transpose(_BACK), lse=np.empty(0, np.float32), weights=weights)


@self_attention_cpu.backward
def self_attention_cpu_backward(
    dy: HostArray, saved: Saved, needs: Any, num_heads: int, dropout_p: float, draw: Any, is_causal: bool
) -> HostArray:
    parts, lead = saved.input.transpose(2, 0, 3, 1, 4), dy.shape[:2]
    a = _heads(parts[0], parts[1], parts[2], None, None, is_causal, None)
    keep = _keep(parts[0], parts[0], dropout_p, draw)
    found = empty((3, *a.query.shape), float32 if a.adds or keep is not None else a.kind)
    slope = in_format(dy, a.kind).reshape(*lead, num_heads, -1).swapaxes(1, 2)
    a.slopes(_flat(slope), keep, dropout_p, saved.weights, list(found))
    return _laid(found.reshape(parts.shape), list(_BACK), needs[0]).transpose(_BACK).reshape(*lead, -1)

"""Body of attention: oneDNN's products and softmax over tiles, so that no more than a tile of scores is ever in memory.

A tile is some heads, TILE rows and all columns that these rows may look at; under a causal mask that is half of them
on the whole. The backward makes each tile's weights again. Masks other than the causal one are left to the reference.
Scores and their softmax are float32; where the machine multiplies a 16-bit format, the weights are rounded to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from ...core.dtypes import DType, float32
from ...core.random import keep_mask
from ...core.saved import Saved
from ...ops.attention import scaled_dot_product_attention_ as attention
from .device import in_format
from .dnnl import library, multiplies
from .formats import FORMATS, memory_order, reorder
from .gemm import folded, multiply
from .onednn import HostArray, empty
from .rowwise import row_gradients, rows_of

TILE = 64  # rows
ROOM = 1 << 20  # scores in a tile: 4 MiB of float32, of which each thread works on a part
WORTH = 1 << 12  # scores; below, the reference is as fast


def _fits(query: HostArray, key: HostArray, value: HostArray, added: Any, allowed: Any, *params: Any) -> bool:
    is_causal, enable_gqa = params[2], params[4]
    if added is not None or allowed is not None or enable_gqa or library() is None or query.dtype not in FORMATS:
        return False
    alike = query.shape[:-2] == key.shape[:-2] == value.shape[:-2] and query.dtype == key.dtype == value.dtype
    square = query.shape[-2] == key.shape[-2] or not is_causal
    return alike and square and query.size > 0 and math.prod(query.shape[:-1]) * key.shape[-2] >= WORTH


class _Heads:
    """The operands as [heads, rows, width], contiguous, in a format in which the machine multiplies."""

    def __init__(self, *arrays: HostArray):
        kind = self.kind = arrays[0].dtype if _complete(arrays[0].dtype) else float32
        self.query, self.key, self.value = (_flat(in_format(array, kind)) for array in arrays)

    def tiles(self, causal: bool) -> Iterator[tuple[slice, slice, slice]]:
        """(heads, rows, columns) of each tile."""
        heads, rows, columns = len(self.query), self.query.shape[1], self.key.shape[1]
        several = max(1, ROOM // (min(TILE, rows) * columns))
        for first in range(0, heads, several):
            for start in range(0, rows, TILE):
                end = min(start + TILE, rows)
                yield slice(first, first + several), slice(start, end), slice(end if causal else columns)

    def weights(self, tile: tuple[slice, slice, slice], causal: bool, scale: float) -> HostArray:
        """Softmax of a tile's scores, [heads, rows, columns]."""
        heads, rows, columns = tile
        query, key = self.query[heads, rows], self.key[heads, columns]
        scores = empty((*query.shape[:2], key.shape[1]), float32)
        _must(multiply(query, key.swapaxes(1, 2), scores, scale=scale))
        if causal:
            ahead = scores[..., rows.start :]
            np.copyto(ahead, -np.inf, where=_future(ahead.shape[1]))
        found = rows_of(folded(scores), "softmax", self.kind)
        _must(found is not None)
        return found.reshape(scores.shape)  # type: ignore[union-attr]


def _flat(array: HostArray) -> HostArray:
    # [..., rows, width] as [heads, rows, width], contiguous
    if not array.flags.c_contiguous:
        home = empty(array.shape, array.dtype)
        if min(array.strides) <= 0 or not reorder(array, home):
            home[...] = array
        array = home
    return array.reshape(-1, *array.shape[-2:])


def _laid_like(query: HostArray, found: HostArray) -> HostArray:
    # In the order of the query's axes in memory: heads that were split off a row go back into it without a copy.
    order = memory_order(query)
    if order == sorted(order):
        return found
    home = empty([found.shape[i] for i in order], found.dtype).transpose(np.argsort(order))
    if not reorder(found, home):
        home[...] = found
    return home


def _future(size: int) -> HostArray:
    return np.triu(np.ones((size, size), np.bool_), 1)


@cache
def _complete(dtype: DType) -> bool:
    """Whether every step can be made in `dtype`, and is worth it: tried once, on a small tile."""
    if dtype == float32 or not multiplies(dtype):
        return dtype == float32
    rows = empty((1, 16, 16), dtype)
    rows[...] = 0
    wide, found = empty(rows.shape, float32), rows_of(folded(np.zeros(rows.shape, np.float32)), "softmax", dtype)
    steps = (multiply(rows, rows, wide), multiply(rows, rows, rows.copy()), found is not None)
    return all(steps) and row_gradients(folded(rows), folded(rows), "softmax", dtype) is not None


def _must(done: bool) -> None:
    assert done, "oneDNN runs float32 everywhere, and 16-bit formats where `_complete` has seen it"


def _scale(query: HostArray, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _kept(query: HostArray, key: HostArray, dropout_p: float, draw: Any) -> HostArray | None:
    # What dropout keeps, and by how much it grows.
    if draw is None:
        return None
    keep = keep_mask(draw[0], draw[1], dropout_p, (*query.shape[:-1], key.shape[-2]))
    return keep.reshape(-1, *keep.shape[-2:])


@attention.on("cpu", when=_fits)
def attention_cpu(
    query: HostArray, key: HostArray, value: HostArray, added: None, allowed: None, dropout_p: float, draw: Any,
    is_causal: bool, scale: float | None, enable_gqa: bool, *, dtype: DType,
) -> Any:  # fmt: skip
    a, factor, keep = _Heads(query, key, value), _scale(query, scale), _kept(query, key, dropout_p, draw)
    out = empty((*a.query.shape[:2], a.value.shape[-1]), dtype if a.kind == query.dtype else a.kind)
    for tile in a.tiles(is_causal):
        weights, (heads, rows, columns) = a.weights(tile, is_causal, factor), tile
        if keep is not None:
            weights *= (keep[heads, rows, columns] / (1 - dropout_p)).astype(a.kind)
        _must(multiply(weights, a.value[heads, columns], out[heads, rows]))
    found = _laid_like(query, in_format(out, dtype).reshape(*query.shape[:-1], value.shape[-1]))
    nothing = np.empty(0, np.float32)  # the sums of rows, a statistic that this body does not keep
    return found, Saved(query=query, key=key, value=value, added=None, allowed=None, lse=nothing)


@attention_cpu.backward
def attention_cpu_backward(
    dy: HostArray, saved: Saved, needs: Any, dropout_p: float, draw: Any, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> Any:  # fmt: skip
    given = saved.query, saved.key, saved.value
    a, factor, keep = _Heads(*given), _scale(saved.query, scale), _kept(saved.query, saved.key, dropout_p, draw)
    slope = _flat(in_format(dy, a.kind))
    gradients = [empty(x.shape, float32) for x in (a.query, a.key, a.value)]
    for tile in a.tiles(is_causal):
        _tile_gradients(
            a, a.weights(tile, is_causal, factor), slope, tile, is_causal, factor, keep, dropout_p, gradients
        )
    pairs = zip(gradients, given, needs[:3], strict=True)
    return *(in_format(g, need).reshape(x.shape) if need else None for g, x, need in pairs), None


def _tile_gradients(
    a: _Heads, weights: HostArray, slope: HostArray, tile: tuple[slice, slice, slice], causal: bool, scale: float,
    keep: HostArray | None, dropout_p: float, gradients: list[HostArray],
) -> None:  # fmt: skip
    heads, rows, columns = tile
    # Under a causal mask the columns of these rows are new, and without one all were met by the first rows.
    held = rows.start if causal or not rows.start else None
    (dq, dk, dv), dy, used = gradients, slope[heads, rows], weights
    ds = empty(weights.shape, a.kind)
    _must(multiply(dy, a.value[heads, columns].swapaxes(1, 2), ds))
    if keep is not None:
        grown = (keep[heads, rows, columns] / (1 - dropout_p)).astype(a.kind)
        used = weights * grown
        ds *= grown
    _add(used.swapaxes(1, 2), dy, dv[heads, columns], held)
    found = row_gradients(folded(ds), folded(weights), "softmax", a.kind)
    _must(found is not None)
    ds = found.reshape(ds.shape)  # type: ignore[union-attr]
    _must(multiply(ds, a.key[heads, columns], dq[heads, rows], scale=scale))
    _add(ds.swapaxes(1, 2), a.query[heads, rows], dk[heads, columns], held, scale)


def _add(first: HostArray, second: HostArray, total: HostArray, held: int | None, scale: float = 1.0) -> None:
    """Add scale * first @ second to `total`, of which the first `held` columns (None: all) hold something."""
    if held == 0:
        _must(multiply(first, second, total, scale=scale))
        return
    part = empty(total.shape, float32)
    _must(multiply(first, second, part, scale=scale))
    total[:, :held] += part[:, :held]
    if held is not None:
        total[:, held:] = part[:, held:]

"""Masks of attention scores, and the dropout mask of attention weights, one tile at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import float32

from .device import in_format
from .onednn.binary import calling
from .onednn.primitive import Call, HostArray, Layout, cached


class Tile(NamedTuple):
    """Ranges of heads, rows and columns of the scores."""

    heads: slice
    rows: slice
    columns: slice


class DropoutMask:
    """The dropout mask of weights [heads, rows, columns], drawn tile by tile.

    draw: (shape, start) -> that part of the mask; the whole of a long sequence would be the largest array of all.
    """

    def __init__(self, draw: Callable[[tuple[int, ...], int], HostArray], size: tuple[int, int, int]):
        self.draw, self.size = draw, size

    def of(self, tile: Tile) -> HostArray:
        """The mask of a tile: [heads, rows, columns]."""
        heads, rows, columns = self.size
        first, end, _ = tile.heads.indices(heads)
        start, stop, _ = tile.rows.indices(rows)
        if (start, stop) == (0, rows):  # whole heads are one range of the random stream
            return self._from(first, 0, (end - first, rows, columns))[..., tile.columns]
        found = np.empty((end - first, stop - start, tile.columns.indices(columns)[1]), np.bool_)
        for head in range(first, end):
            found[head - first] = self._from(head, start, (stop - start, columns))[:, tile.columns]
        return found

    def _from(self, head: int, row: int, shape: tuple[int, ...]) -> HostArray:
        _, rows, columns = self.size
        return self.draw(shape, (head * rows + row) * columns)


class ScoreMask:
    """The attn_mask: added to the scores of a tile if it is floating point, else a bound of -inf where it is False."""

    def __init__(self, added: Any, allowed: Any, lead: tuple[int, ...], size: tuple[int, int]):
        mask = allowed if added is None else added
        self.kind, self.lead, self.view = "min" if added is None else "add", lead, None
        if mask is not None:
            is_shared = math.prod(mask.shape[:-2]) == 1
            self.lead = (1,) if is_shared else lead
            self.view = np.broadcast_to(mask.reshape(1, *mask.shape[-2:]) if is_shared else mask, (*self.lead, *size))

    def apply(self, scores: HostArray, tile: Tile) -> None:
        """Mask the scores of `tile` in place."""
        if self.view is not None:
            heads = np.arange(math.prod(self.lead))[tile.heads if self.lead != (1,) else slice(None)]
            part = self.view[..., tile.rows, tile.columns][np.unravel_index(heads, self.lead)]
            _combine(self.kind, scores, _as_upper_bound(part) if self.kind == "min" else in_format(part, float32))


def _as_upper_bound(allowed: HostArray) -> HostArray:
    # The upper bound of a score. Where True, NaN becomes infinity: softmax returns NaN for either.
    return np.where(allowed, np.float32(np.inf), np.float32(-np.inf))


def apply_causal_mask(scores: HostArray) -> None:
    """Mask `scores` [heads, rows, columns] in place: the last row attends to all columns."""
    _combine("min", scores, _causal_bound(*scores.shape[1:]))


@lru_cache(32)
def _causal_bound(rows: int, columns: int) -> HostArray:
    return _as_upper_bound(np.tri(rows, columns, columns - rows, np.bool_))[None]


def _combine(kind: str, scores: HostArray, mask: HostArray) -> None:
    """`scores` [heads, rows, columns] with `mask` [heads or 1, rows, columns], in place."""
    size = scores[0].size

    def build() -> Call:
        first, second = (Layout.dense((len(array), size), float32) for array in (scores, mask))
        return calling(kind, first, second)

    call = cached(("mask", kind, len(scores), len(mask), size), build)
    if call is None:
        {"min": np.minimum, "add": np.add}[kind](scores, mask, out=scores)
    else:
        call(scores, np.ascontiguousarray(mask), scores)


def has_fully_masked_row(added: HostArray | None, allowed: HostArray | None) -> bool:
    """Whether a row attends to nothing: its output is zero, which only the reference computes."""
    if added is not None:
        return added.ndim == 0 or bool((added.max(-1) == -np.inf).any())
    return allowed is not None and (allowed.ndim == 0 or not allowed.any(-1).all())

"""Masks of attention's scores, and what dropout keeps of their softmax, a tile of them at a time."""

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
    """Some heads, rows and columns of the scores."""

    heads: slice
    rows: slice
    columns: slice


class Keep:
    """What dropout keeps of the weights [heads, rows, columns], drawn for a tile when it is asked for.

    draw: (shape, start) -> a piece of the mask of all, which for a long sequence would be larger than all else.
    """

    def __init__(self, draw: Callable[[tuple[int, ...], int], HostArray], size: tuple[int, int, int]):
        self.draw, self.size = draw, size

    def of(self, tile: Tile) -> HostArray:
        """The mask of a tile: [heads, rows, columns]."""
        heads, rows, columns = self.size
        first, end, _ = tile.heads.indices(heads)
        start, stop, _ = tile.rows.indices(rows)
        if (start, stop) == (0, rows):  # of several heads one piece of the stream
            return self._from(first, 0, (end - first, rows, columns))[..., tile.columns]
        found = np.empty((end - first, stop - start, tile.columns.indices(columns)[1]), np.bool_)
        for head in range(first, end):
            found[head - first] = self._from(head, start, (stop - start, columns))[:, tile.columns]
        return found

    def _from(self, head: int, row: int, shape: tuple[int, ...]) -> HostArray:
        _, rows, columns = self.size
        return self.draw(shape, (head * rows + row) * columns)


class Mask:
    """What is done to the scores of a tile: to add a mask, or to keep down what is not allowed."""

    def __init__(self, added: Any, allowed: Any, lead: tuple[int, ...], size: tuple[int, int]):
        mask = allowed if added is None else added
        self.kind, self.lead, self.view = "min" if added is None else "add", lead, None
        if mask is not None:
            alike = math.prod(mask.shape[:-2]) == 1
            self.lead = (1,) if alike else lead
            self.view = np.broadcast_to(mask.reshape(1, *mask.shape[-2:]) if alike else mask, (*self.lead, *size))

    def apply(self, scores: HostArray, tile: Tile) -> None:
        """Mask `scores`, those of the tile, in place."""
        if self.view is not None:
            heads = np.arange(math.prod(self.lead))[tile.heads if self.lead != (1,) else slice(None)]
            part = self.view[..., tile.rows, tile.columns][np.unravel_index(heads, self.lead)]
            _combine(self.kind, scores, _bound(part) if self.kind == "min" else in_format(part, float32))


def _bound(allowed: HostArray) -> HostArray:
    # The most that a score may be. Where all is allowed even NaN becomes infinite: softmax answers NaN to either.
    return np.where(allowed, np.float32(np.inf), np.float32(-np.inf))


def hide_future(scores: HostArray) -> None:
    """Mask `scores` [heads, rows, columns], in place: the last of the columns is what the last row looks at."""
    _combine("min", scores, _past(*scores.shape[1:]))


@lru_cache(32)
def _past(rows: int, columns: int) -> HostArray:
    return _bound(np.tri(rows, columns, columns - rows, np.bool_))[None]


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


def looks_nowhere(added: HostArray | None, allowed: HostArray | None) -> bool:
    """Whether there is a row without anything to look at, which gets zeros."""
    if added is not None:
        return added.ndim == 0 or bool((added.max(-1) == -np.inf).any())
    return allowed is not None and (allowed.ndim == 0 or not allowed.any(-1).all())

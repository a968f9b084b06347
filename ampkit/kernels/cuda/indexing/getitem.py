"""The gradient of a slice along one axis: zeros around that of the slice, which chains of a recording join."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.registration import on
from ampkit.ops.indexing.getitem import basic_getitem


class Cut(NamedTuple):
    """Elements `start` to `end` of one axis, of length `size`. back: the index that gives dy the axes of the input."""

    axis: int
    start: int
    end: int
    size: int
    back: tuple[Any, ...]


def cut_of(index: Any, shape: Sequence[int]) -> Cut | None:
    """What a basic index takes of an array of this shape; None unless it cuts one axis, in steps of 1."""
    parts = index if type(index) is tuple else (index,)
    axes = sum(part is not None and part is not ... for part in parts)
    full = (slice(None),) * (len(shape) - axes)
    spread = [
        each for part in (parts if ... in parts else (*parts, ...)) for each in (full if part is ... else (part,))
    ]
    cuts, back, axis = list[tuple[int, int, int]](), list[Any](), 0
    for part in spread:
        if part is None:
            back.append(0)
            continue
        size = shape[axis]
        if isinstance(part, slice):
            start, end, step = part.indices(size)
            back.append(slice(None))
        else:
            start, step = part % size, 1
            end = start + 1
            back.append(None)
        if step != 1 or start >= end:
            return None
        if (start, end) != (0, size):
            cuts.append((axis, start, end))
        axis += 1
    return Cut(*cuts[0], shape[cuts[0][0]], tuple(back)) if len(cuts) == 1 else None


def _filled(out: Array, pieces: Sequence[Any], axis: int, start: int, end: int) -> None:
    """Store the one array among `pieces` at `start` to `end` of this axis, and zeros elsewhere."""
    lead = (slice(None),) * axis
    for rest in (slice(0, start), slice(end, out.shape[axis])):
        if rest.start < rest.stop:
            out[(*lead, rest)] = 0
    out[(*lead, slice(start, end))] = next(piece for piece in pieces if hasattr(piece, "dtype"))


def _gradient(dy: Array, saved: Saved, needs: Any, index: Any) -> Array:
    cut = cut_of(index, saved.shape)
    assert cut is not None
    piece, join = dy[cut.back], partial(_filled, start=cut.start, end=cut.end)
    pieces = [each for each in (cut.start, piece, cut.size - cut.end) if not isinstance(each, int) or each]
    out: Array | None = None
    if queue.opened and queue.opens("cuda"):
        out = queue.held.add_cat(pieces, cut.axis, join)
    if out is None:
        out = backends.backend_of(dy).empty(saved.shape, dy.dtype)
        join(out, pieces, cut.axis)
    return out


def _fits(dy: Array, saved: Saved, needs: Any, index: Any) -> bool:
    return dy.size > 0 and dy.dtype.fields is None and cut_of(index, saved.shape) is not None


on(basic_getitem.backward_primitive, "cuda", _gradient, _fits, launches=True)

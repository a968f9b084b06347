"""Which elements of arrays, and of results that wait, the elements of a chain read: affine maps of their indices.

A view of an elementwise result is the result of views: what reads `silu(x)[1:]` may compute silu of x[1:]. A part of a
concatenation is read only where the index is within bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ampkit.base.dtypes import Array


class Bound(NamedTuple):
    """low <= sum(steps * index) < high, for the index of an element of the chain."""

    steps: tuple[int, ...]
    low: int
    high: int


class IndexMap(NamedTuple):
    """Axis i of an array is read at start[i] + sum(steps[i] * index), where all `bounds` hold. rank: of the chain."""

    rank: int
    start: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    bounds: tuple[Bound, ...] = ()

    def of_operand(self, shape: Sequence[int]) -> IndexMap:
        """For an operand of this shape that is broadcast to the array."""
        lead, none = len(self.start) - len(shape), (0,) * self.rank
        start = tuple([0 if n == 1 else self.start[i + lead] for i, n in enumerate(shape)])
        steps = tuple([none if n == 1 else self.steps[i + lead] for i, n in enumerate(shape)])
        return self._replace(start=start, steps=steps)

    def then(self, view: IndexMap) -> IndexMap:
        """For the array of which this one is a view."""
        rows = zip(view.start, view.steps, strict=True)
        start = tuple([first + sum(map(int.__mul__, row, self.start)) for first, row in rows])
        axes = list(zip(*self.steps, strict=True)) or [()] * self.rank
        steps = tuple([tuple([sum(map(int.__mul__, row, axis)) for axis in axes]) for row in view.steps])
        return self._replace(start=start, steps=steps)

    def of_piece(self, axis: int, first: int, length: int, shape: Sequence[int]) -> IndexMap | None:
        """For the part of a concatenation that begins at `first` of this axis; None if it is never read.

        shape: of the chain.
        """
        steps, low = self.steps[axis], first - self.start[axis]
        ends = [step * (n - 1) for step, n in zip(steps, shape, strict=True)]
        least, most = sum(end for end in ends if end < 0), sum(end for end in ends if end > 0)
        if most < low or least >= low + length:
            return None
        start = (*self.start[:axis], -low, *self.start[axis + 1 :])
        everywhere = least >= low and most < low + length
        bounds = self.bounds if everywhere else (*self.bounds, Bound(steps, low, low + length))
        return self._replace(start=start, bounds=bounds)

    def offset(self, strides: Sequence[int]) -> int:
        """Of what the index 0 reads, in the unit of the strides."""
        return sum(map(int.__mul__, self.start, strides))

    def strides(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Along the axes of the chain."""
        axes = list(zip(*self.steps, strict=True)) or [()] * self.rank
        return tuple([sum(map(int.__mul__, axis, strides)) for axis in axes])


def identity(shape: Sequence[int]) -> IndexMap:
    """Of an array that has the shape of the chain."""
    rank = len(shape)
    steps = [tuple([int(i == k and n > 1) for k in range(rank)]) for i, n in enumerate(shape)]
    return IndexMap(rank, (0,) * rank, tuple(steps))


def of_view(view: Array, whole: Array) -> IndexMap | None:
    """How a view reads the array `whole`, whose elements are dense; None where an axis of it runs through several."""
    size = whole.dtype.itemsize
    rest, start = (view.data.ptr - whole.data.ptr) // size, [0] * whole.ndim
    steps = [[0] * view.ndim for _ in start]
    strides = [step // size for step in whole.strides]
    inward = sorted([i for i, n in enumerate(whole.shape) if n > 1], key=lambda i: -strides[i])
    for i in inward:
        start[i], rest = divmod(rest, strides[i])
    for k, n in enumerate(view.shape):
        step = view.strides[k] // size
        if n == 1 or not step:
            continue
        axis = next((i for i in inward if strides[i] <= abs(step) and abs(step) % strides[i] == 0), None)
        if axis is None:
            return None
        steps[axis][k] = step // strides[axis]
    for i, n in enumerate(whole.shape):
        ends = [step * (length - 1) for step, length in zip(steps[i], view.shape, strict=True)]
        if start[i] + sum(e for e in ends if e < 0) < 0 or start[i] + sum(e for e in ends if e > 0) >= n:
            return None
    return IndexMap(view.ndim, tuple(start), tuple(map(tuple, steps)))

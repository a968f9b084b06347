"""Changes of a tensor's placement over the ranks of a group: the collectives, with their gradients.

Each rank has a local tensor. By Replicate it is the whole one, by Shard(dim) a part along an axis, by Partial one of
the terms whose sum over the ranks is the whole one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import backends
from ...autograd import Function
from ...backends import Array
from ...base.errors import ArgumentError, ShapeError
from ...core.fp_errors import ignore_fp_errors
from ...core.tensor import Tensor
from ..device_mesh import Partial, Placement, Replicate, Shard
from ..process_group import ProcessGroup


def redistribute(
    local: Tensor,
    group: ProcessGroup,
    source: Placement,
    target: Placement,
    gradient: Placement | None = None,
    length: int | None = None,
) -> Tensor:
    """The local tensor of placement `target`, of a tensor of placement `source`; all ranks of the group call it.

    gradient: the placement of the result's gradient, by default `target`, or Replicate where that is Partial: a layer
    that multiplies a replicated input with its part of a weight gives Partial ones. The gradient of `local` has the
    placement `source`, or Replicate where that is Partial. length: of the whole axis, where the ranks do not divide
    it; it is cut as Sharding cuts it. Sums are of the ranks in order, in float32 for 16 bits, rounded once.
    Raises ShapeError for an axis whose length the ranks do not divide, without `length`.
    """
    arriving = _of_gradient(target) if gradient is None else gradient
    if group.size() == 1 or (source == target and arriving == _of_gradient(source)):
        return local
    return _Redistribute.apply(local, group, source, target, arriving, length)


def _of_gradient(placement: Placement) -> Placement:
    return Replicate() if isinstance(placement, Partial) else placement


class _Redistribute(Function):
    """`redistribute` off the tape, and back for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, local: Tensor, group: ProcessGroup, source: Any, target: Any, arriving: Any, length: int | None
    ) -> Tensor:
        ctx.way = group, arriving, _of_gradient(source), None, length
        return local.detach() if source == target else Tensor(_moved(local.array, group, source, target, length))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        return redistribute(dy, *ctx.way), None, None, None, None, None


@ignore_fp_errors()
def _moved(array: Array, group: ProcessGroup, source: Placement, target: Placement, length: int | None) -> Array:
    with backends.device_guard(array):
        match source, target:
            case Replicate(), Shard():
                cut = _Cut(group, array, target.dim, length)
                return array[cut.index(group.rank())].copy(order="C")
            case Shard(), Replicate():
                return _gathered(array, group, source.dim, length)
            case Shard(), Shard():
                whole = _gathered(array, group, source.dim, length)
                return _moved(whole, group, Replicate(), target, None)
            case Partial(), Replicate():
                total = array.copy(order="C")
                group.all_reduce_array(total)
                return total
            case Partial(), Shard():
                return _summed_part(array, group, target.dim, length)
    raise ArgumentError("redistribute", "a way from Shard, Replicate or Partial to Shard or Replicate", repr(target))


class _Cut:
    """The parts of an axis: rank r has bounds[r] to bounds[r + 1]. is_part: whether `array` is one of them."""

    def __init__(self, group: ProcessGroup, array: Array, dim: int, length: int | None, is_part: bool = False):
        if not -array.ndim <= dim < array.ndim:
            raise ShapeError("redistribute", f"a tensor with an axis {dim}", f"shape {tuple(array.shape)}")
        self.axis, count = dim % array.ndim, group.size()
        have = array.shape[self.axis]
        whole = (have * count if is_part else have) if length is None else length
        if length is None and whole % count:
            got = f"axis {self.axis} of {tuple(array.shape)}"
            raise ShapeError("redistribute", f"an axis whose length {count} ranks divide", got)
        most = -(-whole // count)
        self.bounds = [min(whole, most * rank) for rank in range(count + 1)]
        self.ndim = array.ndim

    def index(self, rank: int) -> tuple[slice, ...]:
        """This rank's part of a whole array."""
        return (*(slice(None),) * self.axis, slice(self.bounds[rank], self.bounds[rank + 1]))

    def order(self) -> list[int]:
        """The axes with the one that is cut first."""
        return [self.axis, *range(self.axis), *range(self.axis + 1, self.ndim)]

    def back(self) -> list[int]:
        """The axes in their order again."""
        return [*range(1, self.axis + 1), 0, *range(self.axis + 1, self.ndim)]


def _gathered(array: Array, group: ProcessGroup, dim: int, length: int | None) -> Array:
    cut = _Cut(group, array, dim, length, is_part=True)
    mine = array.transpose(cut.order()).copy(order="C")
    size = int(np.prod(mine.shape[1:], dtype=np.int64))
    whole = backends.backend_of(array).empty((cut.bounds[-1], *mine.shape[1:]), array.dtype)
    group.gather_ranges(mine.reshape(-1), whole.reshape(-1), [bound * size for bound in cut.bounds])
    return whole.transpose(cut.back()).copy(order="C")


def _summed_part(array: Array, group: ProcessGroup, dim: int, length: int | None) -> Array:
    cut = _Cut(group, array, dim, length)
    terms = array.transpose(cut.order()).copy(order="C")
    rows = cut.bounds[group.rank() + 1] - cut.bounds[group.rank()]
    mine = backends.backend_of(array).empty((rows, *terms.shape[1:]), array.dtype)
    size = int(np.prod(mine.shape[1:], dtype=np.int64))
    group.reduce_ranges(terms.reshape(-1), [bound * size for bound in cut.bounds], mine.reshape(-1))
    return mine.transpose(cut.back()).copy(order="C")

"""`torch.distributed.tensor`: the names of placements, which libraries put into tables; there are no such tensors."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Partial", "Placement", "Replicate", "Shard", "_StridedShard"]


class Placement:
    """The base of the three."""


class _Shard(NamedTuple):
    dim: int


class Shard(_Shard, Placement):
    """Parts along one axis."""


class _StridedShard(Shard):
    """Parts along one axis of parts."""


class Replicate(Placement):
    """A whole copy on every rank."""


class Partial(Placement):
    """Addends on the ranks."""

    def __init__(self, reduce_op: str = "sum"):
        self.reduce_op = reduce_op

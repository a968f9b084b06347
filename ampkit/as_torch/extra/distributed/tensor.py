"""`torch.distributed.tensor`: placements, and DTensor, which here is the class of tensors that `fully_shard` cuts."""

from __future__ import annotations

from ....distributed.fsdp import Replicate, Shard
from ....distributed.fsdp import ShardedTensor as DTensor
from ....distributed.fsdp.sharded_tensor import Placement

__all__ = ["DTensor", "Partial", "Placement", "Replicate", "Shard", "_StridedShard"]


class _StridedShard(Shard):
    """Parts along one axis of parts."""


class Partial(Placement):
    """Addends on the ranks."""

    def __init__(self, reduce_op: str = "sum"):
        self.reduce_op = reduce_op

"""`torch.distributed.tensor`: a placement of PyTorch's own, beside those of `ampkit.distributed.tensor`."""

from ampkit.distributed.device_mesh import Shard

__all__ = ["_StridedShard"]


class _StridedShard(Shard):
    """Parts along one axis of parts."""

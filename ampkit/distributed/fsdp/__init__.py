"""Fully sharded data parallelism: parameters, gradients and optimizer states shared out over ranks; PyTorch's names."""

from .module import FSDPModule, fully_shard, unsharded
from .policy import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from .sharded_tensor import ShardedTensor

__all__ = [
    "CPUOffloadPolicy", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "ShardedTensor", "fully_shard",
    "unsharded",
]  # fmt: skip

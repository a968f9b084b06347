"""PyTorch's address of `DistributedSampler`."""

from ...data.samplers import DistributedSampler

__all__ = ["DistributedSampler"]

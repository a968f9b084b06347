"""Tensor parallelism: layers whose parameters and products the ranks of a group divide; PyTorch's names."""

from ..device_mesh import Partial, Placement, Replicate, Shard
from . import propagation
from .distribute import distribute_tensor
from .dtensor import DTensor
from .redistribute import redistribute
from .styles import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel, parallelize_module

__all__ = [
    "ColwiseParallel", "DTensor", "ParallelStyle", "Partial", "Placement", "Replicate", "RowwiseParallel",
    "SequenceParallel", "Shard", "distribute_tensor", "parallelize_module", "redistribute",
]  # fmt: skip

"""Tensor parallelism: layers whose parameters and products the ranks of a group divide; PyTorch's names."""

from .redistribute import Partial, redistribute
from .styles import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel, parallelize_module

__all__ = [
    "ColwiseParallel", "ParallelStyle", "Partial", "RowwiseParallel", "SequenceParallel", "parallelize_module",
    "redistribute",
]  # fmt: skip

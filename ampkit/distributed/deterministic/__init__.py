"""Deterministic data parallelism: gradients with the same bits on any number of ranks and threads."""

from .data_parallel import DeterministicDataParallel, mine_of

__all__ = ["DeterministicDataParallel", "mine_of"]

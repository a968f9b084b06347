"""PyTorch's names for `ampkit.data`: the loader, datasets, samplers."""

import sys as _sys

from ...base.missing_names import missing_in_module as _missing_in_module
from ...data.collate import default_collate, default_convert
from ...data.datasets import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from ...data.loader import DataLoader
from ...data.loading.workers import get_worker_info
from ...data.samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler", "IterableDataset",
    "RandomSampler",
    "Sampler", "SequentialSampler", "StackDataset", "Subset", "SubsetRandomSampler", "TensorDataset",
    "WeightedRandomSampler", "default_collate", "default_convert", "get_worker_info", "random_split",
]  # fmt: skip


def __getattr__(name: str) -> None:
    raise _missing_in_module("torch.utils.data", _sys.modules[__name__], name)

"""PyTorch's names for `ampkit.data`: the loader, datasets, samplers."""

from ..data.collate import default_collate
from ..data.datasets import ConcatDataset, Dataset, Subset, TensorDataset, random_split
from ..data.loader import DataLoader
from ..data.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "random_split",
]

"""PyTorch's names for `ampkit.data.loader`."""

from ..data.loader import DataLoader, Dataset, TensorDataset, default_collate

__all__ = ["DataLoader", "Dataset", "TensorDataset", "default_collate"]

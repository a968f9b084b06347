"""PyTorch's import path: `from ampkit.utils.data import DataLoader`."""

from . import data

__all__ = ["data"]

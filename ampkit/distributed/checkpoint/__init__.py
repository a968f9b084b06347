"""Checkpoints of several ranks: a safetensors file for each, which any number of ranks loads; PyTorch's names."""

from .storage import FileSystemReader, FileSystemWriter, async_save, load, save

__all__ = ["FileSystemReader", "FileSystemWriter", "async_save", "load", "save"]

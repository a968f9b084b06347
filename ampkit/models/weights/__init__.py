"""Pretrained weights: from files, folders and the Hugging Face Hub, converted by name from other libraries' layouts."""

from .layout import Layout, Part, Setting, transposed
from .loading import LoadedWeights, Weights, config_of, load_weights, started

__all__ = [
    "Layout",
    "LoadedWeights",
    "Part",
    "Setting",
    "Weights",
    "config_of",
    "load_weights",
    "started",
    "transposed",
]

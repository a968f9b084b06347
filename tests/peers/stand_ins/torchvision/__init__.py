"""A stand-in for torchvision, whose compiled code needs PyTorch: random images and the transforms of scripts."""

from . import datasets, models, ops, transforms, utils

__version__ = "0.22.0"

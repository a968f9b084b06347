"""Data sets (digits, MNIST, CIFAR-10, image folders, text, tables, synthetic), DataLoader, samplers, augmentation."""

from .collate import prefetch

__all__ = ["prefetch"]

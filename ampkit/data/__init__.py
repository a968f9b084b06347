"""Data: digits, MNIST, CIFAR-10, folders of images, bytes of text, synthetic sets, and the loader that feeds them."""

from .collate import prefetch

__all__ = ["prefetch"]

"""Data: the handwritten digits, bytes of text, synthetic sets, and the loader that feeds them in batches."""

from .prefetch import prefetch

__all__ = ["prefetch"]

"""What 16 bits do to a model: where a NaN came from, what each layer loses, and what runs in which dtype."""

from .detect import detect_nonfinite, explain
from .finding import Finding

__all__ = ["Finding", "detect_nonfinite", "explain"]

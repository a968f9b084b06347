"""CUDA kernels of gradient accumulation, which are registered with the pointwise ones."""

from .. import pointwise as pointwise

"""CUDA kernels of reductions: the terms of backends/elementwise/reductions.h, joined by reductions.cu."""

from ampkit.backends.elementwise.kernels.reduction import register_counts, register_reductions

from ..pointwise import LAUNCHER
from .reductions import fits, fits_bool, reduced_with_axes

register_reductions(LAUNCHER, reduced_with_axes, fits)
register_counts(LAUNCHER, reduced_with_axes, fits_bool)

"""CUDA kernels of reductions: the terms of kernels/shared/reductions.h, joined by reductions.cu."""

from ampkit.kernels.shared.reduction import register_counts, register_reductions

from ..pointwise import LAUNCHER
from .reductions import fits, fits_bool, reduced_with_axes

register_reductions(LAUNCHER, reduced_with_axes, fits)
register_counts(LAUNCHER, reduced_with_axes, fits_bool)

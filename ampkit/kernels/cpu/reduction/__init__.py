"""CPU kernels of reductions: the terms of kernels/shared/reductions.h, joined by reductions.cpp."""

from ampkit.backends.cpu.native.arrays import available
from ampkit.kernels.shared.reduction import register_reductions

from ..pointwise import LAUNCHER
from .reductions import fits, reduced

if available():
    register_reductions(LAUNCHER, reduced, fits)

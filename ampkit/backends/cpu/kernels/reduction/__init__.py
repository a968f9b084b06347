"""CPU kernels of reductions: the terms of backends/elementwise/reductions.h, joined by reductions.cpp."""

from ampkit.backends.cpu.native.arrays import available
from ampkit.backends.elementwise.kernels.reduction import register_reductions

from ..pointwise import LAUNCHER
from .reductions import fits, reduced

if available():
    register_reductions(LAUNCHER, reduced, fits)

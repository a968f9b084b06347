"""CPU kernels of losses."""

from ampkit.backends.cpu.native.arrays import available
from ampkit.backends.elementwise.kernels.loss import register_losses

from ..pointwise import LAUNCHER

if available():
    register_losses(LAUNCHER)

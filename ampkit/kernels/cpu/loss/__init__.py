"""CPU kernels of losses."""

from ampkit.backends.cpu.native.arrays import available
from ampkit.kernels.shared.loss import register_losses

from ..pointwise import LAUNCHER

if available():
    register_losses(LAUNCHER)

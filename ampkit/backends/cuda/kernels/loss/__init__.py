"""CUDA kernels of losses."""

from ampkit.backends.elementwise.kernels.loss import register_losses

from ..pointwise import LAUNCHER

register_losses(LAUNCHER)

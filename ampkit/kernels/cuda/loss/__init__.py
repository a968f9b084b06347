"""CUDA kernels of losses."""

from ampkit.kernels.shared.loss import register_losses

from ..pointwise import LAUNCHER

register_losses(LAUNCHER)

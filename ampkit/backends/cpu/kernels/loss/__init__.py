"""CPU kernels of losses."""

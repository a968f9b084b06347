"""CPU kernels of reductions."""

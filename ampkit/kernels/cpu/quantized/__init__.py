"""CPU kernels of 8-bit codes."""

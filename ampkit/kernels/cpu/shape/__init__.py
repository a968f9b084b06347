"""CPU kernels of shape ops."""

"""CPU kernels of pointwise ops."""

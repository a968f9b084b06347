"""CPU kernels of optimizers."""

"""CUDA kernels of optimizers."""

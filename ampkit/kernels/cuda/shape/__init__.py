"""CUDA kernels of shape ops."""

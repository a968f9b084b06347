"""CUDA kernels of pointwise ops."""

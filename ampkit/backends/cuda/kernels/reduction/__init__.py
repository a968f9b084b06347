"""CUDA kernels of reductions."""

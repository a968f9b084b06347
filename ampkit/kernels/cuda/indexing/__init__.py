"""CUDA kernels of indexing ops."""

"""CUDA kernels of linear algebra."""

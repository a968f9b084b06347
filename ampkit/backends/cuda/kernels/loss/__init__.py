"""CUDA kernels of losses."""

"""CUDA kernels of gradient accumulation."""

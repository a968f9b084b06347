"""CUDA kernels of loss scaling."""

"""CUDA kernels of neural-network ops."""

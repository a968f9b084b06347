"""NVIDIA's libraries: matrix products by cublasLt, convolutions and attention by cuDNN."""

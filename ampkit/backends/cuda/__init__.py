"""The GPU: CuPy arrays, kernels in `.cu` files, products by cublasLt, convolutions and attention by cuDNN."""

"""CUDA kernels of einsum: equations of two operands that are one matrix product, by cublasLt."""

from ampkit.backends.cuda.libs.gemm import fits, product
from ampkit.kernels.shared.linalg import register_einsum

register_einsum("cuda", product, fits)

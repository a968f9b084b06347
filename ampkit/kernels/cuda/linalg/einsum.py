"""CUDA kernels of einsum: equations of two operands that are one matrix product, by cublasLt."""

from ampkit.backends.cuda.libs.gemm import fits, product
from ampkit.kernels.shared.linalg import register_einsum
from ampkit.ops.linalg.einsum import is_matrix_product

register_einsum(
    "cuda",
    product,
    lambda operands, equation: fits(*operands) and is_matrix_product(operands, equation),
    lambda dy, saved, needs, equation: fits(dy, *saved.operands) and is_matrix_product(saved.operands, equation),
)

"""CUDA kernels of einsum: equations of two operands that are one matrix product, by cublasLt."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.libs.gemm import fits, product
from ampkit.base.dtypes import Array, DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.linalg.einsum import (
    einsum_,
    is_matrix_product,
    matrix_product,
    matrix_product_gradients,
    parse_equation,
)


@einsum_.on("cuda", when=lambda operands, equation: fits(*operands) and is_matrix_product(operands, equation))
def einsum_cuda(operands: Any, equation: Any, *, dtype: DType) -> Any:
    (first, second), out = parse_equation(equation, operands)
    found = matrix_product(product, first, operands[0], second, operands[1], out, dtype)
    return found, Saved(operands=tuple(operands))


@einsum_.on_backward(
    "cuda",
    when=lambda dy, saved, needs, equation: fits(dy, *saved.operands) and is_matrix_product(saved.operands, equation),
)
def einsum_backward_cuda(dy: Array, saved: Saved, needs: Any, equation: Any) -> Any:
    return matrix_product_gradients(product, dy, saved.operands, needs, equation)

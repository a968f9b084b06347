"""CPU kernels of einsum: equations of two operands that are one matrix product, for which all threads copy operands."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.copies import reshaped
from ampkit.backends.cpu.onednn.gemm import gemm, is_profitable
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.dtypes import DType
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.ops.linalg.einsum import (
    einsum_,
    is_matrix_product,
    matrix_product,
    matrix_product_gradients,
    parse_equation,
)


def _multiply(a: HostArray, b: HostArray, dtype: DType) -> HostArray:
    if not is_profitable(a, b):
        raise UnsupportedError
    return gemm(a, b, dtype)


@einsum_.on("cpu", when=is_matrix_product)
def einsum_cpu(operands: list[HostArray], equation: str, *, dtype: DType) -> Any:
    (first, second), out = parse_equation(equation, operands)
    found = matrix_product(_multiply, first, operands[0], second, operands[1], out, dtype, reshaped)
    return found, Saved(operands=tuple(operands))


@einsum_.on_backward("cpu", when=lambda dy, saved, needs, equation: is_matrix_product(saved.operands, equation))
def einsum_backward_cpu(dy: HostArray, saved: Saved, needs: Any, equation: str) -> Any:
    return matrix_product_gradients(_multiply, dy, saved.operands, needs, equation, reshaped)

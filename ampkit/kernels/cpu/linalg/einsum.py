"""CPU kernels of einsum: equations of two operands that are one matrix product, for which all threads copy operands."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.copies import reshaped
from ampkit.backends.cpu.onednn.gemm import gemm, is_profitable
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.dtypes import DType
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.linalg import register_einsum
from ampkit.ops.linalg.einsum import is_matrix_product


def _multiply(a: HostArray, b: HostArray, dtype: DType) -> HostArray:
    if not is_profitable(a, b):
        raise UnsupportedError
    return gemm(a, b, dtype)


def _gradients_fit(dy: HostArray, saved: Saved, needs: Any, equation: str) -> bool:
    return is_matrix_product(saved.operands, equation)


register_einsum("cpu", _multiply, is_matrix_product, _gradients_fit, reshaped)

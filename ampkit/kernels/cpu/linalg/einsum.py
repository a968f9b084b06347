"""CPU kernels of einsum: equations of two operands that are one matrix product, for which all threads copy operands."""

from __future__ import annotations

from ampkit.backends.cpu.copies import reshaped
from ampkit.backends.cpu.native.arrays import FLOATS
from ampkit.backends.cpu.onednn.gemm import gemm, is_profitable
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.base.dtypes import DType
from ampkit.base.errors import UnsupportedError
from ampkit.kernels.shared.linalg import register_einsum


def _multiply(a: HostArray, b: HostArray, dtype: DType) -> HostArray:
    if not is_profitable(a, b):
        raise UnsupportedError
    return gemm(a, b, dtype)


register_einsum("cpu", _multiply, lambda *arrays: arrays[0].dtype in FLOATS, reshaped)

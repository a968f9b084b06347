"""Products of 16-bit operands on CPUs without units for them: converted to float32 block by block (linalg/matmul.cpp).

Whole operands converted first, for oneDNN to multiply, cost three more passes over memory.
"""

from __future__ import annotations

from ampkit.base.dtypes import float32

from .native.arrays import Function, HostArray, merge_axes, supported
from .native.library import has_products

_matmul = Function("matmul", "aaaa")
_MIN_ROWS, _MIN_COLUMNS, _MIN_DEPTH = 8, 32, 16  # of the product; below, blocks are mostly padding


def matmul_into(a: HostArray, b: HostArray, out: HostArray, bias: HostArray | None) -> bool:
    """Write a [..., M, K] @ b [..., K, N] + bias [N] to `out`, rounded once. -> whether it was done.

    Of any strides and floating-point dtypes of at most 32 bits; leading axes have the same lengths. float32 operands
    alone are left to oneDNN, and so are products that are too small.
    """
    if not has_products() or a.dtype == b.dtype == float32 or not supported(a, b, out):
        return False
    if out.shape[-2] < _MIN_ROWS or out.shape[-1] < _MIN_COLUMNS or a.shape[-1] < _MIN_DEPTH or not out.size:
        return False
    views = [merge_axes(array, (-1, *array.shape[-2:])) if array.ndim > 3 else array for array in (a, b, out)]
    if any(view is None for view in views) or (bias is not None and not supported(bias)):
        return False
    _matmul(views[2], views[0], views[1], bias)
    return True

"""16-bit rows at 16-byte boundaries, which fast products on tensor cores need of both operands and of the result.

With an odd number of columns, such as GPT-2's 50257 tokens, cublasLt takes kernels that load single elements: in
bfloat16, [16384, 768] @ [768, 50257] took 13.2 ms on an H100 (2026-11-26), a sixth of the rate of a vocabulary of
50264. So rows of the result are computed at boundaries and copied together, rows of an operand are copied apart, and
cross_entropy writes its gradient with rows at boundaries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import LOW, DType

from ..nvrtc import MAX_ELEMENTS, launch

Array = Any  # a CuPy array

STEP = 8  # 16-bit values between boundaries
# What the copy of a matrix takes, the slow kernel loses in about 100 products per element, and a launch in 2^28.
LEAST_WIDTH = 256
LEAST_PRODUCTS = 1 << 28


def empty_aligned(like: Array, shape: Sequence[int], dtype: DType) -> Array:
    """Allocate 16-bit [..., N] on the device of `like` with aligned rows: a view of a wider array."""
    wide = backends.backend_of(like).empty((*shape[:-1], shape[-1] + -shape[-1] % STEP), dtype)
    return wide[..., : shape[-1]]


def is_worth_a_copy(dtype: DType, columns: int, sizes: Sequence[int]) -> bool:
    """Whether rows of `columns` values are misaligned, and the product gains by a copy; sizes: its M, K and N."""
    products = math.prod(sizes)
    large = products >= LEAST_PRODUCTS and sorted(sizes)[columns == min(sizes)] >= LEAST_WIDTH
    return dtype in LOW and columns % STEP != 0 and large


def aligned_rows(array: Array, sizes: Sequence[int]) -> Array:
    """A contiguous operand, or a transposed matrix, with aligned rows; copied where that `is_worth_a_copy`."""
    if array.ndim == 2 and array.shape[0] > 1 and array.flags.f_contiguous and not array.flags.c_contiguous:
        return aligned_rows(array.T, sizes).T
    if not array.flags.c_contiguous or not is_worth_a_copy(array.dtype, array.shape[-1], sizes):
        return array
    out = empty_aligned(array, array.shape, array.dtype)
    copy_rows(array, out)
    return out


def copy_rows(source: Array, target: Array) -> None:
    """Copy 16-bit [..., N] to an array of the same shape; each has evenly spaced rows of contiguous values."""
    rows, cols = math.prod(source.shape[:-1]), source.shape[-1]
    assert 0 < rows <= MAX_ELEMENTS
    steps = [np.int64(array.strides[-2] // array.itemsize) for array in (source, target)]
    launch("linalg/copy_rows", "copy_rows", rows, 256, source, target, np.int64(cols), *steps)

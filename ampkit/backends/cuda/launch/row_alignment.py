"""16-bit rows at 16-byte boundaries, and sizes that are multiples of eight: what fast products on tensor cores need.

With an odd vocabulary, such as GPT-2's 50257 tokens, cublasLt takes kernels that load single elements, even where rows
are at boundaries: in bfloat16 on an H100 (2026-11-26), [16384, 768] @ [768, 50257] took 13.3 ms, with 50264 1.9;
the products of its backward took 8.9 and 8.3 ms, and 1.6 ms each. So such an axis is cut into a multiple of eight and
the rest (see gemm.py), and matrices with misaligned rows are copied to or from rows at boundaries, in 1.3 ms for these
logits. Large results, such as logits, stay at boundaries: their rows lie apart in memory, and cross_entropy reads them
there. It writes its gradient in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import LOW, Array, DType

from ..nvrtc import MAX_ELEMENTS, launch

STEP = 8  # 16-bit values between boundaries
BOUNDARY = 16  # bytes
LARGE = 4096  # columns: a vocabulary, not features
LEAST_PRODUCTS = 1 << 28  # with fewer, a launch more costs what the slow kernel loses
LEAST_DEPTH = 256  # products per element of a copied matrix; a copy costs what the slow kernel loses in about 100


def parts(size: int) -> list[slice]:
    """An axis cut at a multiple of eight: one or two slices."""
    cut = size - size % STEP
    return [slice(0, cut), slice(cut, size)] if 0 < cut < size else [slice(0, size)]


def is_row_major(matrix: Array) -> bool:
    """Whether the rows of [..., M, N] are contiguous, rather than its columns."""
    return bool(matrix.shape[-1] == 1 or matrix.strides[-1] == matrix.itemsize)


def is_large(shape: Sequence[int], dtype: DType) -> bool:
    """Whether a result of this shape has its rows at boundaries, not next to each other."""
    return dtype in LOW and shape[-1] >= LARGE


def has_spaced_rows(matrix: Array) -> bool:
    """Whether a matrix has contiguous rows, one behind the other, that may lie apart."""
    if matrix.ndim != 2 or not matrix.size:
        return False
    (step, inner), cols = matrix.strides, matrix.shape[1]
    return (cols == 1 or inner == matrix.itemsize) and step >= cols * matrix.itemsize and not step % matrix.itemsize


def is_misaligned(matrix: Array) -> bool:
    """Whether the rows of a contiguous array, or the columns of a transposed matrix, are not at boundaries."""
    dense = matrix.flags.c_contiguous or (matrix.ndim == 2 and matrix.flags.f_contiguous)
    return bool(dense and matrix.shape[-1 if is_row_major(matrix) else -2] * matrix.itemsize % BOUNDARY)


def empty_aligned(like: Array, shape: Sequence[int], dtype: DType) -> Array:
    """Allocate [..., N] on the device of `like` with rows at boundaries: a view of a wider array."""
    wide = backends.backend_of(like).empty((*shape[:-1], shape[-1] + -shape[-1] % STEP), dtype)
    return wide[..., : shape[-1]]


def aligned_rows(matrix: Array) -> Array:
    """The matrix itself, or a copy at boundaries if it `is_misaligned`."""
    if not is_misaligned(matrix):
        return matrix
    if not is_row_major(matrix):
        return aligned_rows(matrix.T).T
    out = empty_aligned(matrix, matrix.shape, matrix.dtype)
    copy_rows(matrix, out)
    return out


def copy_rows(source: Array, target: Array) -> None:
    """Copy [..., N] to an array of the same shape and dtype; each has evenly spaced rows of contiguous values."""
    rows, cols = math.prod(source.shape[:-1]), source.shape[-1]
    if source.dtype not in LOW or rows > MAX_ELEMENTS:
        target[...] = source
        return
    steps = [np.int64(array.strides[-2] // array.itemsize) for array in (source, target)]
    launch("linalg/copy_rows", "copy_rows", rows, 256, source, target, np.int64(cols), *steps)

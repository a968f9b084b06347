"""Maps strided array operands to BLAS matrices, and a product of them to as few cublasLt calls as possible.

BLAS is column-major, so a row-major product is computed as out^T = b^T a^T. A matrix needs contiguous rows or columns
at a constant stride; a batch of matrices needs a constant stride too, which may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product as every
from typing import NamedTuple, TypeAlias

from ampkit.base.dtypes import DType

from .blas import MAX_SIZE, Compute, Epilogue, Matrix, Memory, Product
from .cublaslt import PLANS

MAX_CALLS = 8  # per product; with more, copying an operand is cheaper

# What a plan depends on: shape, strides in bytes, dtype, and the alignment of the address in bytes.
ArrayKey: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], DType, int]


class Calls(NamedTuple):
    """The calls of a product: its description, None if BLAS cannot express it, and per call byte offsets of a, b, c, d.

    copies: indices of the operands that must be copied first, after a broadcast to all batch axes if `broadcast`. The
    other fields are unset then.
    """

    product: Product | None = None
    offsets: tuple[tuple[int, ...], ...] = ()
    copies: frozenset[int] = frozenset()
    broadcast: bool = False


class _Operand(NamedTuple):
    """A matrix [rows, columns] or a batch of them.

    column_major: whether its columns are contiguous, not its rows. leading: the leading dimension, None if BLAS cannot
    read it. steps: strides in elements along each batch axis of the product.
    """

    dtype: DType
    rows: int
    columns: int
    column_major: bool
    leading: int | None
    steps: tuple[int, ...]


class _BatchAxis(NamedTuple):
    """One batch axis: its length, and its strides in elements in a, b, c and d."""

    length: int
    steps: tuple[int, ...]


@lru_cache(PLANS)
def plan_calls(
    a: ArrayKey, b: ArrayKey, c: ArrayKey, d: ArrayKey, vector: int, epilogue: Epilogue, compute: Compute
) -> Calls:
    """Plan d = a @ b + c for arrays of at least two axes: as few calls as their strides allow.

    Batch axes become further rows of a matrix where strides match. Of the rest, the longest is the batch of a call, and
    there is a call for each index along the others. vector: the alignment of the epilogue's bias, or 0.
    """
    batch = d[0][:-2]
    operands = [_operand(a, batch), _operand(b, batch), _operand(c, batch, False), _operand(d, batch, False)]
    unreadable = frozenset(i for i, operand in enumerate(operands) if operand.leading is None)
    if unreadable:
        return Calls(copies=unreadable)
    axes = _batch_axes(batch, operands)
    while axes and (folded := _fold_into_rows(operands, axes[-1])):
        operands, axes = folded, axes[:-1]
    strided = max(axes, key=lambda axis: axis.length, default=_BatchAxis(1, (0, 0, 0, 0)))  # within a call
    looped = [axis for axis in axes if axis is not strided]
    if math.prod(axis.length for axis in looped) > MAX_CALLS:
        scattered = frozenset(i for i, operand in enumerate(operands) if len(_batch_axes(batch, [operand])) > 1)
        return Calls(copies=scattered, broadcast=True)
    offsets = _offsets(looped, [operand.dtype.itemsize for operand in operands])
    alignment = [_aligned(key[3], of_key) for key, of_key in zip((a, b, c, d), zip(*offsets, strict=True), strict=True)]
    return Calls(_product(operands, strided, (*alignment, vector), epilogue, compute), offsets)


def _operand(key: ArrayKey, batch: tuple[int, ...], may_transpose: bool = True) -> _Operand:
    """Describe an array whose batch axes broadcast to `batch`; only row-major without `may_transpose`."""
    shape, strides, dtype, _ = key
    (rows, columns), size = shape[-2:], dtype.itemsize
    row_stride, column_stride = (step // size for step in strides[-2:])
    is_row_major = (columns == 1 or column_stride == 1) and (rows == 1 or row_stride >= columns)
    is_column_major = may_transpose and (rows == 1 or row_stride == 1) and (columns == 1 or column_stride >= rows)
    column_major = is_column_major and not (is_row_major and columns >= rows)
    # The stride is 0 along batch axes that the operand lacks or broadcasts.
    own = [0 if n == 1 else step // size for n, step in zip(shape[:-2], strides, strict=False)]
    steps = (0,) * (len(batch) - len(own)) + tuple(own)
    leading = (column_stride if columns > 1 else rows) if column_major else (row_stride if rows > 1 else columns)
    valid = not any(step % size for step in strides) and min(steps, default=0) >= 0
    readable = valid and (is_row_major or is_column_major)
    return _Operand(dtype, rows, columns, column_major, leading if readable else None, steps)


def _batch_axes(batch: tuple[int, ...], operands: Sequence[_Operand]) -> list[_BatchAxis]:
    """The batch axes longer than 1; neighbours are merged where the strides of all operands allow it."""
    merged: list[_BatchAxis] = []
    for length, *steps in zip(batch, *(operand.steps for operand in operands), strict=True):
        if merged and all(outer == length * step for outer, step in zip(merged[-1].steps, steps, strict=True)):
            merged[-1] = _BatchAxis(merged[-1].length * length, tuple(steps))
        elif length > 1:
            merged.append(_BatchAxis(length, tuple(steps)))
    return merged


def _offsets(looped: Sequence[_BatchAxis], sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Byte offsets of a, b, c and d for each combination of indices along the axes `looped`."""
    indices = every(*(range(axis.length) for axis in looped))
    return tuple(
        tuple(
            nbytes * sum(at * axis.steps[i] for at, axis in zip(index, looped, strict=True))
            for i, nbytes in enumerate(sizes)
        )
        for index in indices
    )


def _aligned(alignment: int, offsets: Sequence[int]) -> int:
    """The alignment in bytes that holds at all offsets."""
    return min(alignment, *(offset & -offset or alignment for offset in offsets))


def _product(
    operands: Sequence[_Operand], axis: _BatchAxis, alignment: tuple[int, ...], epilogue: Epilogue, compute: Compute
) -> Product | None:
    a, b, c, d = (_matrix(each, axis.length, step) for each, step in zip(operands, axis.steps, strict=True))
    if max(n for each in (a, b, d) for n in (each.rows, each.columns, each.batch)) > MAX_SIZE:
        return None
    transposed = operands[1].column_major, operands[0].column_major
    of_a, of_b, *others = alignment
    return Product(b, a, c, d, transposed, compute, Memory(of_b, of_a, *others), epilogue)


def _fold_into_rows(operands: Sequence[_Operand], axis: _BatchAxis) -> list[_Operand] | None:
    """Merge a batch axis that shares one b into the rows of a, c and d; None where the rows are not evenly spaced."""
    result = list(operands)
    for i in (0, 2, 3):
        operand, step = operands[i], axis.steps[i]
        single = operand.rows == 1
        evenly_spaced = step >= operand.columns if single else step == operand.rows * (operand.leading or 0)
        if axis.steps[1] or operand.column_major or not evenly_spaced:
            return None
        leading = step if single else operand.leading
        result[i] = operand._replace(rows=operand.rows * axis.length, leading=leading)
    return result


def _matrix(operand: _Operand, batch: int, step: int) -> Matrix:
    """`operand` in BLAS's column-major terms: a row-major matrix is its transpose."""
    shape = operand.rows, operand.columns
    shape = shape if operand.column_major else shape[::-1]
    return Matrix(operand.dtype, *shape, operand.leading or 1, batch, step if batch > 1 else 0)

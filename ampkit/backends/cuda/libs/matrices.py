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

from .blas import MOST, Compute, Epilogue, Matrix, Memory, Product
from .cublaslt import PLANS

CALLS = 8  # per product, at most; with more, copying an operand is cheaper


# The cache key of an array: shape, strides in bytes, dtype, and the alignment of its address in bytes.
Sign: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], DType, int]


class Calls(NamedTuple):
    """The calls of a product: its description, None if BLAS cannot express it, and per call byte offsets of a, b, c, d.

    copies: indices of operands that must be copied first; spread: and broadcast. The other fields are unset then.
    """

    product: Product | None = None
    offsets: tuple[tuple[int, ...], ...] = ()
    copies: frozenset[int] = frozenset()
    spread: bool = False


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
def arranged(a: Sign, b: Sign, c: Sign, d: Sign, vector: int, epilogue: Epilogue, compute: Compute) -> Calls:
    """Plan d = a @ b + c for arrays of at least two axes. vector: the alignment of the epilogue's bias, or 0."""
    lead = d[0][:-2]
    operands = [_operand(a, lead), _operand(b, lead), _operand(c, lead, False), _operand(d, lead, False)]
    unreadable = frozenset(i for i, each in enumerate(operands) if each.leading is None)
    if unreadable:
        return Calls(copies=unreadable)
    axes = _batch_axes(lead, operands)
    while axes and (folded := _fold_into_rows(operands, axes[-1])):
        operands, axes = folded, axes[:-1]
    inner = max(axes, key=lambda axis: axis.length, default=_BatchAxis(1, (0, 0, 0, 0)))
    looped = [axis for axis in axes if axis is not inner]
    if math.prod(axis.length for axis in looped) > CALLS:
        scattered = frozenset(i for i, each in enumerate(operands) if len(_batch_axes(lead, [each])) > 1)
        return Calls(copies=scattered, spread=True)
    offsets = _offsets(looped, [each.dtype.itemsize for each in operands])
    alignment = [
        _aligned(sign[3], begins) for sign, begins in zip((a, b, c, d), zip(*offsets, strict=True), strict=True)
    ]
    return Calls(_product(operands, inner, (*alignment, vector), epilogue, compute), offsets)


def _operand(sign: Sign, lead: tuple[int, ...], may_transpose: bool = True) -> _Operand:
    """Describe an array whose batch axes broadcast to `lead`; only row-major without `may_transpose`."""
    shape, strides, dtype, _ = sign
    (rows, columns), size = shape[-2:], dtype.itemsize
    down, along = (step // size for step in strides[-2:])
    flat = (columns == 1 or along == 1) and (rows == 1 or down >= columns)
    transposed = may_transpose and (rows == 1 or down == 1) and (columns == 1 or along >= rows)
    column_major = transposed and not (flat and columns >= rows)
    # The stride is 0 along batch axes that the operand lacks or broadcasts.
    own = [0 if n == 1 else step // size for n, step in zip(shape[:-2], strides, strict=False)]
    steps = (0,) * (len(lead) - len(own)) + tuple(own)
    leading = (along if columns > 1 else rows) if column_major else (down if rows > 1 else columns)
    invalid = any(step % size for step in strides) or min(steps, default=0) < 0
    return _Operand(dtype, rows, columns, column_major, None if invalid or not (flat or transposed) else leading, steps)


def _batch_axes(lead: tuple[int, ...], operands: Sequence[_Operand]) -> list[_BatchAxis]:
    """The batch axes longer than 1; neighbours are merged where the strides of all operands allow it."""
    merged: list[_BatchAxis] = []
    for length, *steps in zip(lead, *(each.steps for each in operands), strict=True):
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


def _aligned(alignment: int, begins: Sequence[int]) -> int:
    """The alignment in bytes that holds at all offsets."""
    return min(alignment, *(begin & -begin or alignment for begin in begins))


def _product(
    operands: Sequence[_Operand], axis: _BatchAxis, alignment: tuple[int, ...], epilogue: Epilogue, compute: Compute
) -> Product | None:
    a, b, c, d = (_matrix(each, axis.length, step) for each, step in zip(operands, axis.steps, strict=True))
    if max(n for each in (a, b, d) for n in (each.rows, each.columns, each.batch)) > MOST:
        return None
    turn, at = (operands[1].column_major, operands[0].column_major), alignment
    return Product(b, a, c, d, turn, compute, Memory(at[1], at[0], at[2], at[3], at[4]), epilogue)


def _fold_into_rows(operands: Sequence[_Operand], axis: _BatchAxis) -> list[_Operand] | None:
    """Merge a batch axis that shares one b into the rows of a, c and d; None where the rows are not evenly spaced."""
    made = list(operands)
    for i in (0, 2, 3):
        each, step = operands[i], axis.steps[i]
        follows = step >= each.columns if each.rows == 1 else step == each.rows * (each.leading or 0)
        if axis.steps[1] or each.column_major or not follows:
            return None
        made[i] = each._replace(rows=each.rows * axis.length, leading=step if each.rows == 1 else each.leading)
    return made


def _matrix(each: _Operand, count: int, step: int) -> Matrix:
    """`each` in BLAS's column-major terms: a row-major matrix is its transpose."""
    shape = (each.rows, each.columns) if each.column_major else (each.columns, each.rows)
    return Matrix(each.dtype, *shape, each.leading or 1, count, step if count > 1 else 0)

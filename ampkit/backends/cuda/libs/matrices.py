"""matrices: how operands lie in memory, in BLAS's words, and the calls that a product of them takes.

BLAS reads matrices column after column, so a row-major product is given to it turned round: out^T = b^T a^T. It takes a
matrix whose rows or columns are packed and lie in equal steps, and a stack of them in equal steps, also in steps of 0.
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

CALLS = 8  # of which a product of stacks may consist; a copy of an operand costs less than more of them


# What an arrangement depends on, of an array: shape, strides, dtype, and bytes that its address is a multiple of.
Sign: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], DType, int]


class Calls(NamedTuple):
    """A description, None if BLAS has no words for it, and per call how many bytes after a, b, c and d to begin.

    copies: the operands, by number, that have to be copied first; spread: and broadcast. The rest is void then.
    """

    product: Product | None = None
    offsets: tuple[tuple[int, ...], ...] = ()
    copies: frozenset[int] = frozenset()
    spread: bool = False


class _Operand(NamedTuple):
    """A matrix [rows, columns], or a stack.

    turned: whether its columns are packed, not its rows. leading: elements from one to the next, None if BLAS cannot
    read it. steps: elements to the next matrix, along each leading axis of the product.
    """

    dtype: DType
    rows: int
    columns: int
    turned: bool
    leading: int | None
    steps: tuple[int, ...]


class _Stack(NamedTuple):
    """One axis of a stack: how many, and elements from one to the next in a, b, c and d."""

    length: int
    steps: tuple[int, ...]


@lru_cache(PLANS)
def arranged(a: Sign, b: Sign, c: Sign, d: Sign, vector: int, epilogue: Epilogue, compute: Compute) -> Calls:
    """How to run d = a @ b + c, for arrays of at least two axes. vector: the alignment of what the epilogue needs."""
    lead = d[0][:-2]
    operands = [_operand(a, lead), _operand(b, lead), _operand(c, lead, False), _operand(d, lead, False)]
    unreadable = frozenset(i for i, each in enumerate(operands) if each.leading is None)
    if unreadable:
        return Calls(copies=unreadable)
    stacks = _stacks(lead, operands)
    while stacks and (taller := _folded(operands, stacks[-1])):
        operands, stacks = taller, stacks[:-1]
    inner = max(stacks, key=lambda stack: stack.length, default=_Stack(1, (0, 0, 0, 0)))
    around = [stack for stack in stacks if stack is not inner]
    if math.prod(stack.length for stack in around) > CALLS:
        scattered = frozenset(i for i, each in enumerate(operands) if len(_stacks(lead, [each])) > 1)
        return Calls(copies=scattered, spread=True)
    offsets = _offsets(around, [each.dtype.itemsize for each in operands])
    alignment = [
        _aligned(sign[3], begins) for sign, begins in zip((a, b, c, d), zip(*offsets, strict=True), strict=True)
    ]
    return Calls(_product(operands, inner, (*alignment, vector), epilogue, compute), offsets)


def _operand(sign: Sign, lead: tuple[int, ...], may_turn: bool = True) -> _Operand:
    shape, strides, dtype, _ = sign
    (rows, columns), size = shape[-2:], dtype.itemsize
    down, along = (step // size for step in strides[-2:])
    flat = (columns == 1 or along == 1) and (rows == 1 or down >= columns)
    stood = may_turn and (rows == 1 or down == 1) and (columns == 1 or along >= rows)
    turned = stood and not (flat and columns >= rows)
    # Along axes that the operand does not have, or has once for all, it stands still.
    own = [0 if n == 1 else step // size for n, step in zip(shape[:-2], strides, strict=False)]
    steps = (0,) * (len(lead) - len(own)) + tuple(own)
    leading = (along if columns > 1 else rows) if turned else (down if rows > 1 else columns)
    odd = any(step % size for step in strides) or min(steps, default=0) < 0
    return _Operand(dtype, rows, columns, turned, None if odd or not (flat or stood) else leading, steps)


def _stacks(lead: tuple[int, ...], operands: Sequence[_Operand]) -> list[_Stack]:
    # The leading axes, of which those that lie in equal steps in all operands are one.
    found: list[_Stack] = []
    for length, *steps in zip(lead, *(each.steps for each in operands), strict=True):
        if found and all(outer == length * step for outer, step in zip(found[-1].steps, steps, strict=True)):
            found[-1] = _Stack(found[-1].length * length, tuple(steps))
        elif length > 1:
            found.append(_Stack(length, tuple(steps)))
    return found


def _offsets(around: Sequence[_Stack], sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    places = every(*(range(stack.length) for stack in around))
    return tuple(
        tuple(
            nbytes * sum(at * stack.steps[i] for at, stack in zip(place, around, strict=True))
            for i, nbytes in enumerate(sizes)
        )
        for place in places
    )


def _aligned(alignment: int, begins: Sequence[int]) -> int:
    return min(alignment, *(begin & -begin or alignment for begin in begins))


def _product(
    operands: Sequence[_Operand], stack: _Stack, alignment: tuple[int, ...], epilogue: Epilogue, compute: Compute
) -> Product | None:
    a, b, c, d = (_matrix(each, stack.length, step) for each, step in zip(operands, stack.steps, strict=True))
    if max(n for each in (a, b, d) for n in (each.rows, each.columns, each.batch)) > MOST:
        return None
    turn, at = (operands[1].turned, operands[0].turned), alignment
    return Product(b, a, c, d, turn, compute, Memory(at[1], at[0], at[2], at[3], at[4]), epilogue)


def _folded(operands: Sequence[_Operand], stack: _Stack) -> list[_Operand] | None:
    # One b for a whole stack whose rows follow each other: a taller matrix.
    made = list(operands)
    for i in (0, 2, 3):
        each, step = operands[i], stack.steps[i]
        follows = step >= each.columns if each.rows == 1 else step == each.rows * (each.leading or 0)
        if stack.steps[1] or each.turned or not follows:
            return None
        made[i] = each._replace(rows=each.rows * stack.length, leading=step if each.rows == 1 else each.leading)
    return made


def _matrix(each: _Operand, count: int, step: int) -> Matrix:
    shape = (each.rows, each.columns) if each.turned else (each.columns, each.rows)
    return Matrix(each.dtype, *shape, each.leading or 1, count, step if count > 1 else 0)

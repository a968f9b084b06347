"""Sums of products by subscripts: einsum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampkit.base.dtypes import DType
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import plain, stands_for
from ampkit.core.op import Array, Arrays, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

__all__ = ["einsum"]
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def einsum(equation: str, *operands: Any) -> Tensor:
    """The sum of products given by `equation`: "bij,bjk->bik" is a batched matrix product.

    operands: one tensor per subscript, or a list of them. Indices missing after the arrow are summed; without an arrow,
    the indices that occur once remain, in alphabetical order; `...` stands for further axes, which broadcast.
    Products are exact, summed in float32, and rounded once.
    Raises ArgumentError for an equation that does not parse, ShapeError for operands that do not fit it.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    return einsum_(operands, equation)


@op(cast=Cast.LOW)
def einsum_(operands: Arrays, equation):
    """`einsum` of a list of operands."""
    parts, out = parse_equation(equation, operands)
    if len(operands) == 1 and operands[0].dtype.kind in "biu" and len(out) < len(set(parts[0])):
        # A pure reduction sums in int64, as `sum` does.
        operands = [operands[0].astype(np.int64)]
    return np.einsum(f"{','.join(parts)}->{out}", *operands, optimize=True), Saved(operands=tuple(operands))


@einsum_.check
def einsum_check(operands, equation):
    parts, _ = parse_equation(equation, operands)
    lengths: dict[str, int] = {}
    for part, operand in zip(parts, operands, strict=True):
        for letter, n in zip(part, operand.shape, strict=True):
            if lengths.setdefault(letter, n) != n and 1 not in (n, lengths[letter]):
                shapes = " and ".join(str(list(o.shape)) for o in operands)
                raise ShapeError("einsum", f"one length for index {letter!r} of {equation!r}", f"operands {shapes}")
            lengths[letter] = max(n, lengths[letter]) if n else 0


@einsum_.backward
def einsum_backward(dy, saved, needs, equation):
    operands = saved.operands
    parts, out = parse_equation(equation, operands)
    return tuple([_operand_gradient(dy, operands, parts, out, i) if needs[i] else None for i in range(len(operands))])


def _operand_gradient(dy: Any, operands: Any, parts: list[str], out: str, i: int) -> Any:
    # dy and the other operands, contracted to the indices of operand i. A repeated index becomes two, tied by an
    # identity matrix; an index that no other term has is broadcast.
    terms = [(out, dy), *((p, o) for k, (p, o) in enumerate(zip(parts, operands, strict=True)) if k != i)]
    own, ties = _split_repeated(parts[i], "".join(parts) + out)
    lengths = dict(zip(own, operands[i].shape, strict=True))
    terms += [(a + b, np.identity(lengths[a], dy.dtype, like=plain(dy))) for a, b in ties]
    present = {letter for part, _ in terms for letter in part}
    out = "".join(letter for letter in own if letter in present)
    found = np.einsum(f"{','.join(p for p, _ in terms)}->{out}", *(o for _, o in terms), optimize=True)
    shape = [found.shape[out.index(letter)] if letter in present else 1 for letter in own]
    short = [m if n == 1 else 1 for n, m in zip(shape, operands[i].shape, strict=True)]
    return found if math.prod(short) == 1 else found.reshape(*shape) * np.ones_like(plain(dy), shape=short)


def _split_repeated(part: str, used: str) -> tuple[str, list[tuple[str, str]]]:
    free, own, ties = [letter for letter in _LETTERS if letter not in used], "", []
    for letter in part:
        if letter in own:
            ties.append((letter, free.pop()))
            letter = ties[-1][1]
        own += letter
    return own, ties


def parse_equation(equation: Any, operands: Any) -> tuple[list[str], str]:
    """The subscripts of each operand and of the result, with letters in place of `...`."""
    if not isinstance(equation, str):
        raise ArgumentError("einsum", "an equation such as 'ij,jk->ik'", repr(equation))
    left, arrow, out = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ArgumentError("einsum", f"{len(parts)} operands for {equation!r}", f"{len(operands)}")
    ranks = [len(np.shape(plain(o))) - len(p.replace("...", "")) for p, o in zip(parts, operands, strict=True)]
    for part, operand, spare in zip(parts, operands, ranks, strict=True):
        if spare < 0 or (spare and "..." not in part):
            got = f"{list(np.shape(plain(operand)))}"
            raise ShapeError("einsum", f"an operand with the axes {part!r} of {equation!r}", got)
    more = [letter for letter in _LETTERS if letter not in equation][: max(ranks)]
    if not arrow:
        once = sorted(c for c in set(left) if c in _LETTERS and left.count(c) == 1)
        out = ("..." if "..." in left else "") + "".join(once)
    full = [p.replace("...", "".join(more[len(more) - r :])) for p, r in zip(parts, ranks, strict=True)]
    result = out.replace("...", "".join(more))
    known = set("".join(full))
    if not known <= set(_LETTERS) or not set(result) <= known or len(set(result)) != len(result):
        raise ArgumentError("einsum", "an equation such as 'ij,jk->ik'", repr(equation))
    return full, result


# For kernels: equations of two operands that are one matrix product.


def is_matrix_product(operands: Any, equation: Any) -> bool:
    """Whether the operands are two, no index is twice in one of them, each is in two of the three terms and as long in
    one as in the other.
    """
    if len(operands) != 2:
        return False
    (first, second), out = parse_equation(equation, operands)
    distinct = all(len(set(part)) == len(part) for part in (first, second))
    lengths = dict(zip(first, operands[0].shape, strict=True))
    same = all(lengths.get(letter, n) == n for letter, n in zip(second, operands[1].shape, strict=True))
    return distinct and same and set(first) ^ set(second) <= set(out)


def _reshape(array: Array, shape: Any) -> Array:
    return array.reshape(shape)


def matrix_product(
    multiply: Any, first: str, a: Array, second: str, b: Array, out: str, dtype: DType, reshape: Any = _reshape
) -> Array:
    """The sum of products first,second->out, in `dtype`, by multiply(a [..., M, K], b [..., K, N], dtype).

    reshape(array, shape): how operands are brought into these shapes.
    """
    batch = [letter for letter in out if letter in first and letter in second]
    summed = [letter for letter in first if letter in second and letter not in out]
    rows, columns = [x for x in first if x not in second], [x for x in second if x not in first]
    lengths = dict(zip(first + second, a.shape + b.shape, strict=True))
    m, k, n = (math.prod(lengths[letter] for letter in letters) for letters in (rows, summed, columns))
    lead = [lengths[letter] for letter in batch]
    left = reshape(a.transpose([first.index(letter) for letter in batch + rows + summed]), (*lead, m, k))
    right = reshape(b.transpose([second.index(letter) for letter in batch + summed + columns]), (*lead, k, n))
    axes = batch + rows + columns
    found = multiply(left, right, dtype).reshape([lengths[letter] for letter in axes])
    return found.transpose(*(axes.index(letter) for letter in out))


def matrix_product_gradients(
    multiply: Any, dy: Array, operands: Any, needs: Any, equation: Any, reshape: Any = _reshape
) -> Any:
    """The gradients of the two operands, in the dtypes `needs`, by matrix products; see `matrix_product`."""
    (a, b), ((first, second), out) = operands, parse_equation(equation, operands)
    da = matrix_product(multiply, out, dy, second, b, first, needs[0], reshape) if needs[0] else None
    return da, matrix_product(multiply, first, a, out, dy, second, needs[1], reshape) if needs[1] else None


stands_for[np.einsum] = lambda equation, *operands, optimize=None: einsum(equation, *operands)

"""Kernels of einsum: two operands whose subscripts spell a product of stacks of matrices, by cublasLt."""

from __future__ import annotations

import math
from typing import Any

from ampkit.backends.cuda.libs.gemm import fits, product
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.linalg.einsum import einsum_, parse_equation

Array = Any  # a CuPy array


def _spells_a_product(operands: Any, equation: Any) -> bool:
    """Whether each index is in two of the three, in no operand twice, and as long in one as in the other."""
    if len(operands) != 2 or not fits(*operands):
        return False
    (first, second), out = parse_equation(equation, operands)
    distinct = all(len(set(part)) == len(part) for part in (first, second))
    lengths = dict(zip(first, operands[0].shape, strict=True))
    alike = all(lengths.get(letter, n) == n for letter, n in zip(second, operands[1].shape, strict=True))
    return distinct and alike and set(first) ^ set(second) <= set(out)


def _contracted(first: str, a: Array, second: str, b: Array, out: str, dtype: DType) -> Array | None:
    """The sum of products that first,second->out spells, in `dtype`; None where nothing can do it."""
    each = [letter for letter in out if letter in first and letter in second]
    over = [letter for letter in first if letter in second and letter not in out]
    rows, columns = [x for x in first if x not in second], [x for x in second if x not in first]
    lengths = dict(zip(first + second, a.shape + b.shape, strict=True))
    m, k, n = (math.prod(lengths[letter] for letter in axes) for axes in (rows, over, columns))
    stack = tuple([lengths[letter] for letter in each])
    left = _moved(a, first, [*each, *rows, *over]).reshape((*stack, m, k))
    right = _moved(b, second, [*each, *over, *columns]).reshape((*stack, k, n))
    found = product(left, right, dtype)
    if found is None:
        return None
    axes = [*each, *rows, *columns]
    return _moved(found.reshape(tuple([lengths[letter] for letter in axes])), "".join(axes), list(out))


def _moved(array: Array, axes: str, order: list[str]) -> Array:
    return array.transpose(*(axes.index(letter) for letter in order)) if list(axes) != order else array


@einsum_.on("cuda", when=_spells_a_product)
def einsum_cuda(operands: Any, equation: Any, *, dtype: DType) -> Any:
    (first, second), out = parse_equation(equation, operands)
    found = _contracted(first, operands[0], second, operands[1], out, dtype)
    return NotImplemented if found is None else (found, Saved(operands=tuple(operands)))


@einsum_.on_backward(
    "cuda",
    when=lambda dy, saved, needs, equation: fits(dy, *saved.operands) and _spells_a_product(saved.operands, equation),
)
def einsum_backward_cuda(dy: Array, saved: Saved, needs: Any, equation: Any) -> Any:
    a, b = saved.operands
    (first, second), out = parse_equation(equation, saved.operands)
    da = _contracted(out, dy, second, b, first, needs[0]) if needs[0] else None
    db = _contracted(first, a, out, dy, second, needs[1]) if needs[1] else None
    missing = (needs[0] and da is None) or (needs[1] and db is None)
    return NotImplemented if missing else (da, db)

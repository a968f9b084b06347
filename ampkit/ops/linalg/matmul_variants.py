"""Products that one product of matrices carries: with vectors, sums over a batch, chains of matrices.

Each is `addmm` or `matmul` in another shape: exact products, sums in float32, one rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import bool_
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.tensor import Tensor

from ..creation.like import ones_like
from ..indexing.subscript import broadcast_of
from ..pointwise.comparison import logical_and, logical_or
from ..pointwise.selection import where
from ..shape.axes import axis
from ..shape.view import broadcast_to, movedim, permute, reshape, squeeze, unsqueeze
from .einsum import einsum
from .matmul import addmm, matmul
from .operand_shapes import need_addend, need_axes, need_factor
from .solvers import inverse

__all__ = [
    "addbmm", "addmv", "addr", "chain_matmul", "linalg_multi_dot", "linalg_vecdot", "matrix_power", "vecdot",
]  # fmt: skip


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec), rounded once; beta=0 leaves input out, NaN and all.

    input broadcastable to [M], mat [M, K], vec [K] -> [M]. Raises ShapeError for shapes that do not fit.
    """
    need_factor("addmv", "vec", vec.array, "mat", mat.array, "[{1}]", "[M, K]")
    need_addend("addmv", input.array, mat.shape[:1])
    return squeeze(addmm(unsqueeze(input, -1), mat, unsqueeze(vec, 1), beta=beta, alpha=alpha), 1)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * all products of two vectors' elements, rounded once; beta=0 leaves input out.

    input broadcastable to [M, N], vec1 [M], vec2 [N] -> [M, N]. Of bool, "or" and "and" take the places of sum and
    product. Raises ShapeError for shapes that do not fit.
    """
    need_axes("addr", "vec1", vec1.array, "[M]")
    need_axes("addr", "vec2", vec2.array, "[N]")
    need_addend("addr", input.array, (*vec1.shape, *vec2.shape))
    column, row = unsqueeze(vec1, 1), unsqueeze(vec2, 0)
    if {input.dtype, vec1.dtype, vec2.dtype} == {bool_}:  # whose sum is "or", and whose product "and"
        both = logical_and(logical_and(column, row), Tensor(np.full_like(row.array, bool(alpha))))
        return logical_or(logical_and(input, Tensor(np.full_like(row.array, bool(beta)))), both)
    return addmm(input, column, row, beta=beta, alpha=alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the sum over the batch of batch1 @ batch2, rounded once; beta=0 leaves input out.

    input broadcastable to [M, N], batch1 [B, M, K], batch2 [B, K, N] -> [M, N]. One product over B and K together.
    Raises ShapeError for shapes that do not fit.
    """
    need_factor("addbmm", "batch2", batch2.array, "batch1", batch1.array, "[{0}, {2}, N]", "[B, M, K]")
    batch, rows, inner = batch1.shape
    columns = batch2.shape[2]
    need_addend("addbmm", input.array, (rows, columns))
    left = reshape(permute(batch1, (1, 0, 2)), (rows, batch * inner))
    return addmm(input, left, reshape(batch2, (batch * inner, columns)), beta=beta, alpha=alpha)


def chain_matmul(*matrices: Any) -> Tensor:
    """The product of matrices [a, b], [b, c], ... in the order that takes the fewest multiplications.

    Every product is rounded on its own, as by `matmul`. Raises ShapeError unless each fits the next, DTypeError
    for none. Cormen et al., Introduction to Algorithms, sec. 15.2.
    """
    chain = tuple(matrices[0]) if len(matrices) == 1 and isinstance(matrices[0], (list, tuple)) else matrices
    if not chain or not all(isinstance(m, Tensor) for m in chain):
        raise DTypeError("chain_matmul", "Tensors, at least one", ", ".join(type(m).__name__ for m in chain) or "none")
    need_axes("chain_matmul", "matrix", chain[0].array, "[M, K]")
    for left, right in pairwise(m.array for m in chain):
        need_factor("chain_matmul", "matrix", right, "a matrix", left, "[{1}, N]", "[M, K]")
    return _multiplied(chain, _splits((*(m.shape[0] for m in chain), chain[-1].shape[1])), 0, len(chain) - 1)


def linalg_multi_dot(tensors: Iterable[Tensor]) -> Tensor:
    """`chain_matmul` of a list of at least two, whose first may be a row [a] and whose last a column [z].

    Their axis is missing in the answer. Raises as `chain_matmul`, and ArgumentError for fewer than two.
    """
    chain = list(tensors)
    if len(chain) < 2:
        raise ArgumentError("multi_dot", "at least two tensors", f"{len(chain)}")
    gone = [at for at, vector in ((0, chain[0].ndim == 1), (-1, chain[-1].ndim == 1)) if vector]
    for at in gone:
        chain[at] = unsqueeze(chain[at], at)
    return squeeze(chain_matmul(*chain), tuple(gone)) if gone else chain_matmul(*chain)


def _splits(sizes: tuple[int, ...]) -> Any:
    """(first, last) -> where the matrices from first to last are best parted: after which one."""

    @cache
    def cost(first: int, last: int) -> tuple[int, int]:
        if first == last:
            return 0, first
        ends = sizes[first] * sizes[last + 1]
        return min((cost(first, k)[0] + cost(k + 1, last)[0] + ends * sizes[k + 1], k) for k in range(first, last))

    return lambda first, last: cost(first, last)[1]


def _multiplied(chain: Sequence[Tensor], split: Any, first: int, last: int) -> Tensor:
    if first == last:
        return chain[first]
    at = split(first, last)
    return matmul(_multiplied(chain, split, first, at), _multiplied(chain, split, at + 1, last))


def matrix_power(input: Tensor, n: int) -> Tensor:
    """The product of n matrices that are all the same: [.., M, M] -> [.., M, M]; of none, the identity.

    By squares, log2(n) products and more, each rounded on its own, as by `matmul`. Raises ShapeError for matrices that
    are not square. Below 0, of the inverses.
    """
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        raise ShapeError("matrix_power", "square matrices [.., M, M]", f"shape {tuple(input.shape)}")
    if not isinstance(n, int):
        raise ArgumentError("matrix_power", "n as a whole number", repr(n))
    if n < 0:
        return matrix_power(inverse(input), -n)
    if n == 0:
        one = Tensor(backends.backend_of(input.array).constant(np.eye(input.shape[-1])).astype(input.dtype))
        return where(ones_like(input, dtype=np.bool_), one, input)
    half = input if n == 1 else matrix_power(input, n // 2)
    square = half if n == 1 else matmul(half, half)
    return matmul(square, input) if n > 1 and n % 2 else square


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The inner products of vectors along `dim`: x, y [.., n, ..], broadcast -> [..]. Precision as `matmul`.

    Raises ShapeError for shapes that do not broadcast, RangeError for an axis that is not there.
    """
    shape = broadcast_of("vecdot", x.shape, y.shape)
    x, y = (t if shape else unsqueeze(t, 0) for t in (x, y))
    shape = shape or (1,)
    at = axis("vecdot", dim, len(shape))
    x, y = (movedim(broadcast_to(t, shape), at, -1) for t in (x, y))
    return einsum("...i,...i->...", x, y)


linalg_vecdot = vecdot

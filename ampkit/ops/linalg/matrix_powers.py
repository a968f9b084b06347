"""Chains, powers and the exponential: chain_matmul, multi_dot, matrix_power, matrix_exp, vander."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from math import ceil, isfinite, log2
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.base.formats import need_arithmetic
from ampkit.core.arguments import shown
from ampkit.core.autograd.traced_array import apply
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_factor, check_ndim
from ..creation.constants import ones_like
from ..pointwise.selection import where
from ..reduction.cumulative import cumprod
from ..shape.join_split import cat
from ..shape.repeat_and_flip import flip
from ..shape.view import expand, squeeze, unsqueeze
from .matmul import matmul
from .solvers import check_square, inverse, transposed

__all__ = ["chain_matmul", "linalg_multi_dot", "matrix_exp", "matrix_power", "vander"]


def chain_matmul(*matrices: Any) -> Tensor:
    """The product of matrices [a, b], [b, c], ... in the order with the fewest multiplications.

    Every product is rounded on its own, as by `matmul`. Raises ShapeError unless each fits the next, DTypeError
    for none. Cormen et al., Introduction to Algorithms, sec. 15.2.
    """
    chain = tuple(matrices[0]) if len(matrices) == 1 and isinstance(matrices[0], (list, tuple)) else matrices
    if not chain or not all(isinstance(m, Tensor) for m in chain):
        raise DTypeError("chain_matmul", "Tensors, at least one", ", ".join(type(m).__name__ for m in chain) or "none")
    check_ndim("chain_matmul", "matrix", chain[0].array, "[M, K]")
    for left, right in pairwise(m.array for m in chain):
        check_factor("chain_matmul", "matrix", right, "a matrix", left, "[{1}, N]", "[M, K]")
    return _multiply_range(
        chain, _optimal_splits((*(m.shape[0] for m in chain), chain[-1].shape[1])), 0, len(chain) - 1
    )


def linalg_multi_dot(tensors: Iterable[Tensor]) -> Tensor:
    """`chain_matmul` of a list of at least two, whose first may be a row [a] and whose last a column [z].

    The result then lacks that axis. Raises as `chain_matmul`, and ArgumentError for fewer than two.
    """
    chain = list(tensors)
    if len(chain) < 2:
        raise ArgumentError("multi_dot", "at least two tensors", f"{len(chain)}")
    if foreign := [item for item in chain if not isinstance(item, Tensor)]:
        raise DTypeError("multi_dot", "Tensors", shown(foreign[0]))
    gone = [at for at, vector in ((0, chain[0].ndim == 1), (-1, chain[-1].ndim == 1)) if vector]
    for at in gone:
        chain[at] = unsqueeze(chain[at], at)
    return squeeze(chain_matmul(*chain), tuple(gone)) if gone else chain_matmul(*chain)


def _optimal_splits(sizes: tuple[int, ...]) -> Any:
    """Return (first, last) -> the index after which to split that part of the chain, by dynamic programming."""

    @cache
    def cost(first: int, last: int) -> tuple[int, int]:
        if first == last:
            return 0, first
        ends = sizes[first] * sizes[last + 1]
        return min((cost(first, k)[0] + cost(k + 1, last)[0] + ends * sizes[k + 1], k) for k in range(first, last))

    return lambda first, last: cost(first, last)[1]


def _multiply_range(chain: Sequence[Tensor], split: Any, first: int, last: int) -> Tensor:
    if first == last:
        return chain[first]
    at = split(first, last)
    return matmul(_multiply_range(chain, split, first, at), _multiply_range(chain, split, at + 1, last))


def matrix_power(input: Tensor, n: int) -> Tensor:
    """The n-th power of matrices: [.., M, M] -> [.., M, M]; the identity for n = 0, powers of the inverse for n < 0.

    By repeated squaring, each product rounded as by `matmul`. Raises ShapeError for matrices that are not square.
    """
    need_arithmetic("matrix_power", input)
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        raise ShapeError("matrix_power", "square matrices [.., M, M]", f"shape {tuple(input.shape)}")
    if not isinstance(n, int):
        raise ArgumentError("matrix_power", "n as an integer", repr(n))
    if n < 0:
        return matrix_power(inverse(input), -n)
    if n == 0:
        one = Tensor(backends.backend_of(input.array).constant(np.eye(input.shape[-1])).astype(input.array.dtype))
        return where(ones_like(input, dtype=np.bool_), one, input)
    half = input if n == 1 else matrix_power(input, n // 2)
    square = half if n == 1 else matmul(half, half)
    return matmul(square, input) if n > 1 and n % 2 else square


@op(cast=Cast.FP32, integers="refuse")
def matrix_exp(input: Array):
    """The exponentials of matrices, sum A^n / n!: [.., M, M] -> [.., M, M]; NaN where one has inf or NaN.

    By scaling and squaring of the Pade approximant of degree 13; the host reads the largest norm. Higham 2005, SIAM J.
    Matrix Anal. Appl. 26(4), algorithm 2.3. The gradient is a block of the exponential of [[A^T, dy], [0, A^T]]
    (Mathias 1996, SIAM J. Matrix Anal. Appl. 17(3), theorem 2.1).
    """
    norm = float(np.abs(input).sum(-2).max()) if input.size else 0.0
    if not isfinite(norm):
        return np.full_like(input, np.nan), Saved(input=input)
    squarings = max(0, ceil(log2(norm / _LARGEST_NORM))) if norm else 0
    out = _pade_of_exp(input * 2.0**-squarings)
    for _ in range(squarings):
        out = out @ out
    return out, Saved(input=input)


matrix_exp.check(lambda input: check_square("matrix_exp", input))


@matrix_exp.backward
def matrix_exp_backward(dy, saved, needs):
    a, n = transposed(saved.input), saved.input.shape[-1]
    above, below = np.concatenate((a, dy), -1), np.concatenate((dy * 0, a), -1)
    return apply(matrix_exp, np.concatenate((above, below), -2))[..., :n, n:]


_LARGEST_NORM = 5.371920351148152  # below which degree 13 is as precise as float64
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
    10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip


def _pade_of_exp(a: Any) -> Any:
    b, one = _PADE, backends.backend_of(a).constant(np.eye(a.shape[-1], dtype=a.dtype))
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a2 @ a4
    odd = a @ (
        a6 @ (a6 * b[13] + a4 * b[11] + a2 * b[9]) + a6 * b[7] + a4 * b[5] + a2 * b[3] + one * b[1]
    )  # fmt: skip
    even = a6 @ (a6 * b[12] + a4 * b[10] + a2 * b[8]) + a6 * b[6] + a4 * b[4] + a2 * b[2] + one * b[0]
    return np.linalg.solve(even - odd, even + odd)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:  # noqa: N803 - PyTorch's name
    """The Vandermonde matrix of a vector: powers N - 1 to 0 as columns, or increasing; [n] -> [n, N], N = n by default.

    In float32, as `cumprod`; integers in int64. Raises ShapeError for other shapes, ArgumentError for N below 0.
    """
    if x.ndim != 1:
        raise ShapeError("vander", "a vector [n]", f"shape {tuple(x.shape)}")
    return batched_vander(x, N, increasing)


def batched_vander(x: Tensor, N: int | None, increasing: bool) -> Tensor:  # noqa: N803
    """`vander` of vectors [.., n] -> [.., n, N]."""
    width = x.shape[-1] if N is None else N
    if not isinstance(width, int) or width < 0:
        raise ArgumentError("vander", "N from 0", repr(N))
    ones = Tensor(np.ones_like(x.array)[..., None][..., : min(1, width)])
    powers = cumprod(cat([ones, expand(unsqueeze(x, -1), (*x.shape, max(width - 1, 0)))], -1), -1)
    return powers if increasing else flip(powers, (-1,))

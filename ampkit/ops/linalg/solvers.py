"""Inverses, determinants, linear systems and the Cholesky factor of matrices [.., M, M].

In float32 (float64 for float64), rounded once. Backwards recompute from the input, not from a rounded result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.autograd.traced_array import plain
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..creation.constants import ones_like
from ..pointwise.conversion import to
from ..pointwise.powers_and_logs import log
from ..pointwise.selection import where
from ..shape.triangular import diag_embed, diagonal, tril, triu
from ..shape.view import squeeze, transpose, unsqueeze

__all__ = [
    "cholesky_solve", "det", "inverse", "linalg_cholesky", "linalg_inv", "linalg_solve", "linalg_solve_triangular",
    "logdet", "slogdet",
]  # fmt: skip


def call_lapack(where: str, needs: str, function: Any, *args: Any) -> Any:
    """Call `function(*args)`; raise ArgumentError where LAPACK fails. On a GPU failures are not read back."""
    try:
        return function(*args)
    except np.linalg.LinAlgError as error:
        raise ArgumentError(where, needs, f"others: {str(error).lower()}") from None


def call_iterative(where: str, function: Any, x: Any) -> Any:
    """`call_lapack` for an iteration, which inf and NaN would keep from ending, or lead to numbers that mean nothing.

    Raises ArgumentError for them; on a GPU, whose values are not read, the library ends by itself.
    """
    if type(x) is np.ndarray and not np.isfinite(x).all():
        raise ArgumentError(where, "finite matrices", "inf or NaN")
    return call_lapack(where, "finite matrices", function, x)


def transposed(x: Any) -> Any:
    """Transpose the last two axes."""
    return np.swapaxes(x, -1, -2)


def symmetrized(x: Any) -> Any:
    """Return (x + x^T) / 2."""
    return (x + transposed(x)) * 0.5


def check_square(where: str, x: Any) -> None:
    """Raise ShapeError unless x holds square matrices."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(where, "square matrices [.., M, M]", f"shape {tuple(x.shape)}")


@op(cast=Cast.FP32, integers="refuse", numpy=np.linalg.inv)
def inverse(input: Array):
    """The inverses of matrices [.., M, M]. Raises ArgumentError for a singular one, on a CPU."""
    return call_lapack("inverse", "matrices with an inverse", np.linalg.inv, input), Saved(input=input)


@inverse.backward
def inverse_backward(dy, saved, needs):
    y = transposed(np.linalg.inv(saved.input))
    return -(y @ dy @ y)


def linalg_inv(A: Tensor) -> Tensor:  # noqa: N803 - PyTorch's name
    """`inverse`, with the argument name of torch.linalg."""
    return inverse(A)


@op(cast=Cast.FP32, integers="refuse", numpy=np.linalg.det)
def det(input: Array):
    """The determinants of matrices: [.., M, M] -> [..]. The gradient needs matrices that have an inverse."""
    return np.linalg.det(input), Saved(input=input)


@det.backward
def det_backward(dy, saved, needs):
    x = saved.input
    return (dy * np.linalg.det(x)).reshape(*dy.shape, 1, 1) * transposed(_inverse_for_grad("det", x))


def _inverse_for_grad(where: str, x: Any) -> Any:
    return call_lapack(f"the gradient of {where}", "matrices with an inverse", np.linalg.inv, x)


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


def slogdet(input: Tensor) -> SlogdetResult:
    """(sign, log |det|) of matrices, which cannot overflow: [.., M, M] -> [..], [..]; 0 and -inf of a singular one.

    The gradient needs matrices that have an inverse.
    """
    logabs, sign = slogdet_(input)
    return SlogdetResult(to(sign.detach(), logabs.dtype), logabs)


@op(cast=Cast.FP32, integers="refuse")
def slogdet_(input: Array):
    """`slogdet` as (log |det|, sign): the gradient belongs to the first output."""
    sign, logabs = np.linalg.slogdet(input)
    return (logabs, sign), Saved(input=input)


@slogdet_.backward
def slogdet_backward(dy, saved, needs):
    return dy[0].reshape(*dy[0].shape, 1, 1) * transposed(_inverse_for_grad("slogdet", saved.input))


def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant: [.., M, M] -> [..]; NaN where that is negative, -inf of a singular matrix."""
    sign, logabs = slogdet(input)
    return where(sign < 0, log(sign), logabs)


def is_batch_of_vectors(A: Tensor, B: Tensor) -> bool:  # noqa: N803 - PyTorch's names
    """Whether the right-hand side B of A X = B is vectors, one for each matrix, not matrices."""
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and A.shape[:-1] == B.shape)


def linalg_solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:  # noqa: N803 - PyTorch's names
    """Solve A X = B, or X A = B with left=False: A [.., M, M], B [.., M, K] -> [.., M, K], the batches broadcast.

    B with A's shape less one axis is a batch of vectors. Raises ShapeError for shapes that do not fit,
    ArgumentError for a singular A, on a CPU.
    """
    if is_batch_of_vectors(A, B):
        return squeeze(linalg_solve(A, unsqueeze(B, -1)), -1)
    if not left:
        return transpose(linalg_solve(transpose(A, -1, -2), transpose(B, -1, -2)), -1, -2)
    return solve_(A, B)


@op(cast=Cast.FP32, integers="refuse", numpy=np.linalg.solve)
def solve_(A: Array, B: Array):  # noqa: N803
    """`linalg_solve` of matrices."""
    return call_lapack("solve", "matrices with an inverse", np.linalg.solve, *_batched(A, B)), Saved(A=A, B=B)


def _batched(A: Any, B: Any) -> list[Any]:  # noqa: N803
    # With the batch axes of both, which CuPy's `solve` does not broadcast.
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    return [x if x.shape[:-2] == batch else np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (A, B)]


@solve_.check
def solve_check(A, B):  # noqa: N803
    check_square("solve", A)
    if B.ndim < 2 or B.shape[-2] != A.shape[-1]:
        raise ShapeError("solve", f"B [.., {A.shape[-1]}, K] for A {list(A.shape)}", f"{list(B.shape)}")


@solve_.backward
def solve_backward(dy, saved, needs):
    db = np.linalg.solve(*_batched(transposed(saved.A), dy))
    return -(db @ transposed(np.linalg.solve(*_batched(saved.A, saved.B)))) if needs[0] is not None else None, db


def linalg_solve_triangular(
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """`linalg_solve` with the upper or lower triangle of A; unitriangular: with ones on its diagonal."""
    check_square("solve_triangular", A)
    part = triu(A, 1 if unitriangular else 0) if upper else tril(A, -1 if unitriangular else 0)
    if unitriangular:
        part = part + diag_embed(ones_like(diagonal(A, 0, -2, -1)))
    return solve_matrices(part, B, left)


def solve_matrices(A: Tensor, B: Tensor, left: bool = True) -> Tensor:  # noqa: N803
    """`linalg_solve` that always takes B as matrices."""
    if left:
        return solve_(A, B)
    return transpose(solve_(transpose(A, -1, -2), transpose(B, -1, -2)), -1, -2)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:  # noqa: N803
    """Solve L L^T X = B for the Cholesky factor L [.., M, M], or U^T U X = B (upper): B [.., M, K] -> [.., M, K]."""
    low = transpose(triu(L), -1, -2) if upper else tril(L)
    return solve_matrices(transpose(low, -1, -2), solve_matrices(low, B))


def linalg_cholesky(A: Tensor, *, upper: bool = False) -> Tensor:  # noqa: N803
    """The lower triangular L with L L^T = A, or U = L^T (upper), of positive definite matrices [.., M, M].

    Computed for (A + A^T) / 2. Raises ArgumentError unless positive definite, on a CPU.
    """
    return transpose(cholesky_(A), -1, -2) if upper else cholesky_(A)


@op(cast=Cast.FP32, integers="refuse", numpy=np.linalg.cholesky)
def cholesky_(input: Array):
    """`linalg_cholesky`, lower."""
    out = call_lapack("cholesky", "positive definite matrices", np.linalg.cholesky, symmetrized(input))
    return out, Saved(input=input)


@cholesky_.backward
def cholesky_backward(dy, saved, needs):
    # Iain Murray 2016, arXiv:1602.07527, eq. 10.
    upper = transposed(np.linalg.cholesky(symmetrized(saved.input)))
    low, identity = (f(dy.shape[-1], dtype=dy.dtype, like=plain(dy)) for f in (np.tri, np.identity))
    inner = np.linalg.solve(upper, (upper @ (dy * low)) * (low - 0.5 * identity))
    return symmetrized(transposed(np.linalg.solve(upper, transposed(inner))))


for _op in (inverse, det, slogdet_, cholesky_):
    _op.check(lambda input, name=_op.name: check_square(name, input))

"""Least squares, factors of low rank, and solvers that report failures as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import accumulator, int32
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.dispatch.batching.array import one_by_one
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.tensor import Tensor

from ..argument_checks import normalize_axes
from ..creation.constants import empty, eye, zeros
from ..creation.random import randn
from ..pointwise.conversion import to
from ..pointwise.selection import where
from ..reduction.norms import linalg_matrix_norm
from ..reduction.reductions import mean, sum
from ..shape.view import broadcast_to, permute, reshape, transpose, unsqueeze
from .decompositions import linalg_matrix_rank, linalg_pinv, linalg_qr, linalg_svd, linalg_svdvals
from .lu import checked_info, first_zero, lu_
from .matmul import matmul
from .solvers import (
    check_square,
    cholesky_solve,
    is_batch_of_vectors,
    linalg_cholesky,
    linalg_inv,
    linalg_solve,
    linalg_solve_triangular,
    symmetrized,
)

__all__ = [
    "cholesky_inverse", "linalg_cholesky_ex", "linalg_cond", "linalg_inv_ex", "linalg_lstsq", "linalg_solve_ex",
    "linalg_tensorinv", "linalg_tensorsolve", "pca_lowrank", "svd_lowrank", "triangular_solve",
]  # fmt: skip


class CholeskyExResult(NamedTuple):
    """L, and info: 0, or the order of the first leading minor that is not positive."""

    L: Tensor
    info: Tensor


class InvExResult(NamedTuple):
    """The inverse, and info: 0, or the first place on the diagonal of U of A = P L U, from 1, that is 0."""

    inverse: Tensor
    info: Tensor


class SolveExResult(NamedTuple):
    """X of A X = B, and info as in `InvExResult`."""

    result: Tensor
    info: Tensor


class LstsqResult(NamedTuple):
    """X of least |A X - B|; squared residuals, rank, and singular values, where the method has them."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class TriangularSolveResult(NamedTuple):
    """X of A X = b, and A."""

    solution: Tensor
    cloned_coefficient: Tensor


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:  # noqa: N803
    """The inverse of L L^T, or of U^T U (upper), by the Cholesky factor [.., M, M]."""
    check_square("cholesky_inverse", L)
    identity = eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return cholesky_solve(broadcast_to(identity, tuple(L.shape)), L, upper)


def triangular_solve(
    b: Tensor,
    A: Tensor,  # noqa: N803
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> TriangularSolveResult:
    """`linalg_solve_triangular`, by its older name; transpose: of A^T X = b."""
    matrix = A.mT if transpose else A
    found = linalg_solve_triangular(matrix, b, upper=upper != transpose, unitriangular=unitriangular)
    return TriangularSolveResult(found, A.clone())


@ignore_fp_errors()
def _failed_minors(A: Tensor) -> Tensor:  # noqa: N803
    # Of each matrix 0, or the order of its first leading minor that is not positive. Read on the host.
    x = symmetrized(A.detach().numpy(force=True).astype(accumulator(A.array.dtype)))
    found = np.zeros(x.shape[:-2], np.int32)
    for place in np.ndindex(*x.shape[:-2]):
        found[place] = next((n for n in range(1, x.shape[-1] + 1) if not _has_cholesky(x[place][:n, :n])), 0)
    return to(Tensor(found), A.device)


def _has_cholesky(x: Any) -> bool:
    try:
        return bool(np.isfinite(np.linalg.cholesky(x)).all())
    except np.linalg.LinAlgError:
        return False


def _where_good(info: Tensor, A: Tensor, result: Any) -> Tensor:  # noqa: N803
    # result(A), NaN for the matrices that info marks.
    bad = reshape(info != 0, *info.shape, 1, 1)
    found = result(where(bad, eye(A.shape[-1], dtype=A.dtype, device=A.device), A))
    return where(bad, float("nan"), found)


def linalg_cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyExResult:  # noqa: N803
    """`linalg_cholesky`, and info [..] int32 instead of an error: NaN where a matrix is not positive definite."""
    try:
        found = linalg_cholesky(A, upper=upper)
    except ArgumentError:
        info = _failed_minors(A)
        checked_info("cholesky_ex", info, check_errors)
        return CholeskyExResult(_where_good(info, A, lambda x: linalg_cholesky(x, upper=upper)), info)
    bad = np.isnan(found.array).any((-2, -1))  # where a GPU's failures are
    return CholeskyExResult(found, checked_info("cholesky_ex", Tensor(bad.astype(np.int32)), check_errors))


def linalg_inv_ex(A: Tensor, *, check_errors: bool = False) -> InvExResult:  # noqa: N803
    """`linalg_inv`, and info [..] int32 instead of an error: NaN where a matrix has no inverse."""
    try:
        return InvExResult(linalg_inv(A), zeros(tuple(A.shape[:-2]), dtype=int32, device=A.device))
    except ArgumentError:
        info = checked_info("inv_ex", first_zero(lu_(A.detach())[0]), check_errors)
        return InvExResult(_where_good(info, A, linalg_inv), info)


def linalg_solve_ex(
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    *,
    left: bool = True,
    check_errors: bool = False,
) -> SolveExResult:
    """`linalg_solve`, and info [..] int32 instead of an error: NaN where a matrix has no inverse."""
    try:
        return SolveExResult(linalg_solve(A, B, left=left), zeros(tuple(A.shape[:-2]), dtype=int32, device=A.device))
    except ArgumentError:
        info = checked_info("solve_ex", first_zero(lu_(A.detach())[0]), check_errors)
        if is_batch_of_vectors(A, B):
            found = _where_good(info, A, lambda x: unsqueeze(linalg_solve(x, B, left=left), -1))
            return SolveExResult(reshape(found, *B.shape), info)
        return SolveExResult(_where_good(info, A, lambda x: linalg_solve(x, B, left=left)), info)


def linalg_lstsq(
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> LstsqResult:
    """The X of least |A X - B|, and of these the shortest: A [.., M, N], B [.., M, K] or [.., M] -> [.., N, K].

    By the pseudo-inverse, whatever the driver; singular values up to rcond times the largest one count as 0.
    residuals: squared, [.., K], where M > N, all matrices have full rank and a driver other than "gelsy" is named;
    rank [..]: but for "gels"; singular_values: for "gelsd" and "gelss", off the tape. What is not there is empty, as in
    PyTorch.
    """
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ArgumentError("lstsq", "driver gels, gelsy, gelsd or gelss", repr(driver))
    if A.ndim < 2 or not B.ndim or B.shape[: A.ndim - 1] != A.shape[:-1]:
        got = f"{tuple(A.shape)} and {tuple(B.shape)}"
        raise ShapeError("lstsq", "A [.., M, N] and B [.., M, K] or [.., M]", got)
    m, n = A.shape[-2:]
    is_vector = B.ndim == A.ndim - 1 and A.shape[:-1] == B.shape
    right = unsqueeze(B, -1) if is_vector else B
    found = matmul(linalg_pinv(A, rtol=rcond), right)
    none = empty(0, dtype=found.dtype, device=A.device)
    rank = linalg_matrix_rank(A, rtol=rcond)
    residuals = none
    if m > n and driver not in (None, "gelsy"):
        one_by_one("lstsq", rank.array)
    if m > n and driver not in (None, "gelsy") and bool((rank == n).all()):
        residuals = sum((matmul(A, found) - right).square(), -2)
    values = linalg_svdvals(A.detach()) if driver in ("gelsd", "gelss") else none
    return LstsqResult(
        reshape(found, *found.shape[:-1]) if is_vector else found,
        residuals,
        none.long() if driver == "gels" else rank,
        values,
    )


def linalg_cond(A: Tensor, p: Any = None) -> Tensor:  # noqa: N803
    """The condition number |A| |A^-1| of matrices [.., M, N] -> [..]: of the 2-norm, or of norm p."""
    if p is None or (isinstance(p, int | float | np.number) and abs(p) == 2):
        s = linalg_svdvals(A)
        return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    return linalg_matrix_norm(A, p) * linalg_matrix_norm(linalg_inv(A), p)


def linalg_tensorinv(A: Tensor, ind: int = 2) -> Tensor:  # noqa: N803
    """The inverse of A as a map from its last axes to its first `ind` ones: shape [*S, *T] -> [*T, *S]."""
    if not 0 < ind < A.ndim:
        raise ArgumentError("tensorinv", f"ind from 1 to {A.ndim - 1}", str(ind))
    first, last = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    square = reshape(A, int(np.prod(first)), -1)
    check_square("tensorinv", square)
    return reshape(linalg_inv(square), *last, *first)


def linalg_tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:  # noqa: N803
    """X with tensordot(A, X, X.ndim) = B; the axes `dims` of A are moved to its end first."""
    if dims is not None:
        moved = normalize_axes("tensorsolve", tuple(dims), A.ndim) if len(dims) else ()
        A = permute(A, tuple(d for d in range(A.ndim) if d not in moved) + tuple(moved))  # noqa: N806
    shape = tuple(A.shape[B.ndim :])
    square = reshape(A, B.numel(), -1)
    check_square("tensorsolve", square)
    return reshape(linalg_solve(square, reshape(B, -1)), *shape)


_MOST_POWERS = 1 << 10  # each takes two products and two QR factors; a few suffice


def svd_lowrank(A: Tensor, q: int = 6, niter: int = 2, M: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:  # noqa: N803
    """U [.., m, q], S [.., q], V [.., n, q] of the best U diag(S) V^T for A - M [.., m, n], nearly, by random vectors.

    niter: powers of A A^T that separate the values. Draws from the default stream. Halko, Martinsson and Tropp 2011,
    arXiv:0909.4061, algorithm 4.4.
    """
    if A.ndim < 2:
        raise ShapeError("svd_lowrank", "matrices [.., m, n]", f"shape {tuple(A.shape)}")
    least = min(A.shape[-2:])
    if not 0 <= q <= least:
        raise ArgumentError("svd_lowrank", f"q from 0 to {least}", str(q))
    if not 0 <= niter <= _MOST_POWERS:
        raise ArgumentError("svd_lowrank", f"niter from 0 to {_MOST_POWERS}", str(niter))
    a = A if M is None else A - M
    tall = a.shape[-2] >= a.shape[-1]
    a = a if tall else transpose(a, -1, -2)
    drawn = randn(a.shape[-1], q, dtype=accumulator(a.array.dtype), device=a.device)
    basis = linalg_qr(matmul(a, to(drawn, a.dtype))).Q
    for _ in range(niter):
        basis = linalg_qr(matmul(transpose(a, -1, -2), basis)).Q
        basis = linalg_qr(matmul(a, basis)).Q
    u, s, vh = linalg_svd(matmul(transpose(basis, -1, -2), a), full_matrices=False)
    left, right = matmul(basis, u), transpose(vh, -1, -2)
    return (left, s, right) if tall else (right, s, left)


def pca_lowrank(A: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> tuple[Tensor, Tensor, Tensor]:  # noqa: N803
    """`svd_lowrank` of A [.., m, n] less the mean of its rows (center); q: by default min(6, m, n)."""
    if A.ndim < 2:
        raise ShapeError("pca_lowrank", "matrices [.., m, n]", f"shape {tuple(A.shape)}")
    wanted = min(6, *A.shape[-2:]) if q is None else q
    return svd_lowrank(A - mean(A, -2, keepdim=True) if center else A, wanted, niter)

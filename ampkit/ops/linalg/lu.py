"""LU factors of matrices by partial pivoting, and systems solved with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import int32
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ampkit.core.autograd.traced_array import TracedArray
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor

from ..argument_checks import check_values
from ..creation.constants import empty, eye
from ..pointwise.conversion import to
from ..shape.triangular import tril, triu
from ..shape.view import transpose
from .matmul import matmul
from .solvers import call_lapack, check_square, linalg_solve_triangular, transposed

__all__ = [
    "linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex", "linalg_lu_solve", "lu_solve", "lu_unpack",
]  # fmt: skip


class LUResult(NamedTuple):
    """P L U."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactorResult(NamedTuple):
    """L below and U on and above the diagonal of one matrix, and the rows exchanged, int32 from 1."""

    LU: Tensor
    pivots: Tensor


class LUFactorExResult(NamedTuple):
    """`LUFactorResult`, and info: 0, or the first place on the diagonal of U, from 1, that is 0."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


@op(cast=Cast.FP32, integers="refuse")
def lu_(input: Array):
    """(LU, pivots from 0) of matrices [.., M, N] by partial pivoting, the rows of the largest numbers first."""
    if isinstance(input, TracedArray):
        raise StateError("lu", "a first derivative", "a second one")
    m, n = input.shape[-2:]
    a = input.copy()
    pivots = np.zeros((*input.shape[:-2], min(m, n)), np.int64, like=input)
    for k in range(min(m, n)):
        row = k + np.argmax(np.abs(a[..., k:, k]), -1)
        pivots[..., k] = row
        index = row[..., None, None]
        lines = np.arange(m, like=input)[:, None]
        # rows k and `row` change places
        source = np.where(lines == k, index, np.where(lines == index, k, lines))
        a = np.take_along_axis(a, np.broadcast_to(source, (*a.shape[:-2], m, 1)), -2)
        pivot = a[..., k : k + 1, k : k + 1]
        factor = np.where(pivot == 0, 0, a[..., k + 1 :, k : k + 1] / np.where(pivot == 0, 1, pivot))
        a[..., k + 1 :, k : k + 1] = factor
        a[..., k + 1 :, k + 1 :] = a[..., k + 1 :, k + 1 :] - factor * a[..., k : k + 1, k + 1 :]
    return (a, pivots), Saved(lu=a, pivots=pivots)


@lu_.check
def lu_check(input):
    if input.ndim < 2:
        raise ShapeError("lu", "matrices [.., M, N]", f"shape {tuple(input.shape)}")


def row_order(pivots: Any, m: int) -> Any:
    # The row of A that is row i of P^T A: [.., k] -> [.., m].
    order = np.broadcast_to(np.arange(m, like=pivots), (*pivots.shape[:-1], m)).copy()
    for k in range(pivots.shape[-1]):
        row = pivots[..., k : k + 1]
        first, second = order[..., k : k + 1].copy(), np.take_along_axis(order, row, -1)
        np.put_along_axis(order, row, first, -1)
        order[..., k : k + 1] = second
    return order


def _solved(a: Any, b: Any) -> Any:
    return call_lapack("the gradient of lu", "matrices of full rank", np.linalg.solve, a, b)


@lu_.backward
def lu_backward(dy, saved, needs):
    # Of P^T A = L U: A = [A1 | A2] gives U2 = L^-1 A2 and A = [A1; A2] gives L2 = A2 U^-1 beside the square part,
    # whose gradient is L^-T (tril(L^T dL, -1) + triu(dU U^T)) U^-T.
    lu, (m, n) = saved.lu, saved.lu.shape[-2:]
    k, d = min(m, n), dy[0]
    low = np.tril(lu[..., :k, :k], -1) + np.identity(k, lu.dtype, like=lu)
    up = np.triu(lu[..., :k, :k])
    d_low, d_up = np.tril(d[..., :k, :k], -1), np.triu(d[..., :k, :k])
    right = below = None
    if n > k:
        right = _solved(transposed(low), d[..., :, k:])
        d_low = d_low - right @ transposed(lu[..., :, k:])
    if m > k:
        below = transposed(_solved(up, transposed(d[..., k:, :])))
        d_up = d_up - transposed(lu[..., k:, :]) @ below
    inner = np.tril(transposed(low) @ d_low, -1) + np.triu(d_up @ transposed(up))
    found = _solved(transposed(low), transposed(_solved(up, transposed(inner))))
    if right is not None:
        found = np.concatenate([found, right], -1)
    if below is not None:
        found = np.concatenate([found, below], -2)
    place = np.argsort(row_order(saved.pivots, m), -1)[..., None]
    return np.take_along_axis(found, np.broadcast_to(place, found.shape), -2)


def linalg_lu(A: Tensor, *, pivot: bool = True) -> LUResult:  # noqa: N803 - PyTorch's names, here and below
    """P L U = A of matrices [.., M, N], k = min(M, N): P [.., M, M] of rows, L [.., M, k] with ones, U [.., k, N]."""
    return LUResult(*lu_unpack(*linalg_lu_factor(A, pivot=pivot)))


def linalg_lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactorResult:  # noqa: N803
    """LU and pivots of matrices [.., M, N], for `lu_solve`. Raises ArgumentError for pivot=False."""
    if not pivot:
        raise ArgumentError("lu_factor", "pivot=True", "False", "without pivots the factors lose all digits")
    lu, pivots = lu_(A)
    return LUFactorResult(lu, to(pivots.detach() + 1, int32))


def linalg_lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorExResult:  # noqa: N803
    """`linalg_lu_factor`, and info instead of an error, which check_errors raises."""
    lu, pivots = linalg_lu_factor(A, pivot=pivot)
    return LUFactorExResult(lu, pivots, checked_info("lu_factor_ex", first_zero(lu), check_errors))


def first_zero(lu: Tensor) -> Tensor:
    """The `info` of LU factors: the number of the first zero on the diagonal of U, from 1; 0 for none. [..] int32."""
    diagonal = np.diagonal(lu.array, 0, -2, -1) == 0
    if not diagonal.shape[-1]:
        return Tensor(diagonal.any(-1).astype(np.int32))
    first = np.where(diagonal.any(-1), np.argmax(diagonal, -1) + 1, 0)
    return Tensor(first.astype(np.int32))


def checked_info(where_: str, info: Tensor, check_errors: bool) -> Tensor:
    """info; raises ArgumentError (check_errors) where it is not 0."""
    if check_errors and bool((info != 0).any()):
        raise ArgumentError(where_, "matrices that can be factored", f"info {info.tolist()}")
    return info


def _check_factors(where: str, lu: Tensor, pivots: Tensor) -> None:
    if lu.ndim < 2 or pivots.shape != (*lu.shape[:-2], min(lu.shape[-2:])):
        got = f"{tuple(lu.shape)} and {tuple(pivots.shape)}"
        raise ShapeError(where, "LU [.., M, N] and pivots [.., min(M, N)]", got)
    if pivots.array.dtype.kind != "i":
        raise DTypeError(where, "pivots of integers", pivots.dtype.name)
    rows = pivots.array
    check_values(where, rows, (rows < 1) | (rows > lu.shape[-2]), f"pivots from 1 to {lu.shape[-2]}")


def lu_unpack(
    LU_data: Tensor,  # noqa: N803
    LU_pivots: Tensor,  # noqa: N803
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> LUResult:
    """(P, L, U) of what `linalg_lu_factor` returns; empty tensors for what is not unpacked."""
    _check_factors("lu_unpack", LU_data, LU_pivots)
    m, n = LU_data.shape[-2:]
    k, none = min(m, n), empty(0, dtype=LU_data.dtype, device=LU_data.device)
    low = up = places = none
    if unpack_data:
        identity = eye(m, k, dtype=LU_data.dtype, device=LU_data.device)
        low, up = tril(LU_data[..., :, :k], -1) + identity, triu(LU_data[..., :k, :])
    if unpack_pivots:
        order = Tensor(row_order(LU_pivots.array.astype(np.int64) - 1, m))
        places = transpose(eye(m, dtype=LU_data.dtype, device=LU_data.device)[order], -1, -2)
    return LUResult(places, low, up)


def linalg_lu_solve(
    LU: Tensor,  # noqa: N803
    pivots: Tensor,
    B: Tensor,  # noqa: N803
    *,
    left: bool = True,
    adjoint: bool = False,
) -> Tensor:
    """X of A X = B by the factors of A, or of X A = B (left=False), or with A transposed (adjoint)."""
    _check_factors("lu_solve", LU, pivots)
    check_square("lu_solve", LU)
    if not left:
        found = linalg_lu_solve(LU, pivots, transpose(B, -1, -2), adjoint=not adjoint)
        return transpose(found, -1, -2)
    places, low, up = lu_unpack(LU, pivots)
    if adjoint:
        inner = linalg_solve_triangular(transpose(up, -1, -2), B, upper=False)
        return matmul(places, linalg_solve_triangular(transpose(low, -1, -2), inner, upper=True))
    inner = linalg_solve_triangular(low, matmul(transpose(places, -1, -2), B), upper=False)
    return linalg_solve_triangular(up, inner, upper=True)


def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:  # noqa: N803
    """`linalg_lu_solve`, by its older name."""
    return linalg_lu_solve(LU_data, LU_pivots, b)

"""Eigenvalues, singular values and QR of matrices. In float32 (float64 for float64), rounded once; first derivatives.

Eigenvectors and singular vectors are unique up to sign, and their gradients are infinite where two values coincide;
those of the values are always finite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ampkit.base.dtypes import accumulator, finfo
from ampkit.base.errors import ArgumentError, ShapeError, StateError, check_choice
from ampkit.core.autograd.traced_array import TracedArray
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

from ..argument_checks import broadcast_shape, check_floating
from ..pointwise.conversion import to
from ..reduction.reductions import sum
from .solvers import call_iterative, call_lapack, check_square, symmetrized, transposed

__all__ = [
    "linalg_eigh", "linalg_eigvalsh", "linalg_matrix_rank", "linalg_pinv", "linalg_qr", "linalg_svd", "linalg_svdvals",
    "pinverse",
]  # fmt: skip


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVDResult(NamedTuple):
    """U diag(S) Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class QRResult(NamedTuple):
    """Q R."""

    Q: Tensor
    R: Tensor


def _check_matrix(where: str, x: Any) -> None:
    if isinstance(x, TracedArray):
        raise StateError(where, "a first derivative", "a second one")
    if x.ndim < 2:
        raise ShapeError(where, "matrices [.., M, N]", f"shape {tuple(x.shape)}")


def _divide_by_gaps(grad: Any, values: Any) -> Any:
    # grad / (value j - value i) off the diagonal, 0 where grad is 0: [.., n, n], [.., n] -> [.., n, n].
    zero = (grad == 0) | (_identity_like(values) > 0)
    return np.where(zero, 0, grad / np.where(zero, 1, values[..., None, :] - values[..., :, None]))


def _identity_like(values: Any) -> Any:
    # The identity [n, n] on the device of values [.., n].
    return np.identity(values.shape[-1], values.dtype, like=values)


def linalg_eigh(A: Tensor, UPLO: str = "L") -> EighResult:  # noqa: N803 - PyTorch's names
    """(eigenvalues [.., M], eigenvectors [.., M, M]) of symmetric matrices; of (A + A^T) / 2 for either UPLO."""
    check_choice("eigh", "UPLO", UPLO, "L", "U")
    values, vectors = eigh_(A)
    return EighResult(values, to(vectors, values.dtype))


def linalg_eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:  # noqa: N803
    """The eigenvalues of symmetric matrices in ascending order: [.., M, M] -> [.., M]; see `linalg_eigh`."""
    return linalg_eigh(A, UPLO).eigenvalues


@op(cast=Cast.FP32, integers="refuse")
def eigh_(input: Array):
    """`linalg_eigh`."""
    _check_matrix("eigh", input)
    values, vectors = call_iterative("eigh", np.linalg.eigh, symmetrized(input))
    return (values, vectors), Saved(values=values, vectors=vectors)


@eigh_.backward
def eigh_backward(dy, saved, needs):
    values, v = saved.values, saved.vectors
    inner = _divide_by_gaps(transposed(v) @ dy[1], values) + dy[0][..., None] * _identity_like(values)
    return symmetrized(v @ inner @ transposed(v))


def linalg_svd(A: Tensor, full_matrices: bool = True, driver: CompatArg = None) -> SVDResult:  # noqa: N803
    """U [.., M, k], S [.., k] descending, Vh [.., k, N] of matrices [.., M, N], k = min(M, N).

    full_matrices: U and Vh square. Raises StateError then if A requires grad and is not square.
    """
    if full_matrices and A.ndim >= 2 and A.shape[-1] != A.shape[-2]:
        if A.requires_grad:
            cure = "full_matrices=False"
            raise StateError("svd", "square matrices or reduced factors for a gradient", f"{list(A.shape)}", cure)
        check_floating("svd", A)
        u, s, vh = call_iterative("svd", np.linalg.svd, to(A, accumulator(A.array.dtype)).array)
        return SVDResult(*(to(Tensor(x), A.dtype) for x in (u, s, vh)))
    s, u, vh = svd_(A)
    return SVDResult(to(u, s.dtype), s, to(vh, s.dtype))


def linalg_svdvals(A: Tensor, driver: CompatArg = None) -> Tensor:  # noqa: N803
    """The singular values of matrices in descending order: [.., M, N] -> [.., min(M, N)]."""
    return svd_(A)[0]


@op(cast=Cast.FP32, integers="refuse")
def svd_(input: Array):
    """`linalg_svd` with reduced factors, as (S, U, Vh)."""
    _check_matrix("svd", input)
    u, s, vh = call_iterative("svd", lambda x: np.linalg.svd(x, full_matrices=False), input)
    return (s, u, vh), Saved(u=u, s=s, vh=vh)


@svd_.backward
def svd_backward(dy, saved, needs):
    # Townsend 2016, "Differentiating the singular value decomposition", eq. 31.
    u, s, vh, (ds, du, dvh) = saved.u, saved.s, saved.vh, dy
    left, right = transposed(u) @ du, vh @ transposed(dvh)
    inner = [_divide_by_gaps(x - transposed(x), s * s) for x in (left, right)]
    grad = u @ (inner[0] * s[..., None, :] + s[..., :, None] * inner[1] + ds[..., None] * _identity_like(s)) @ vh
    zero = s == 0
    inverse = np.where(zero, 0, 1 / np.where(zero, 1, s))
    grad = grad + ((du - u @ left) * inverse[..., None, :]) @ vh
    return grad + u @ (inverse[..., :, None] * (dvh - transposed(right) @ vh))


def linalg_qr(A: Tensor, mode: str = "reduced") -> QRResult:  # noqa: N803
    """Q [.., M, k] of orthonormal columns and R [.., k, N] upper triangular, of [.., M, N]; k = min(M, N).

    Raises ArgumentError for another mode than "reduced".
    """
    if mode != "reduced":
        raise ArgumentError("qr", "mode 'reduced'", repr(mode))
    r, q = qr_(A)
    return QRResult(to(q, r.dtype), r)


@op(cast=Cast.FP32, integers="refuse")
def qr_(input: Array):
    """`linalg_qr`, as (R, Q)."""
    _check_matrix("qr", input)
    q, r = call_lapack("qr", "finite matrices", np.linalg.qr, input)
    return (r, q), Saved(q=q, r=r)


@qr_.backward
def qr_backward(dy, saved, needs):
    # Walter and Lehmann 2010, arXiv:1009.6112, section 4. Of [X | Y] wider than high, X = Q U and Y = Q V with
    # R = [U | V]; V = Q^T Y adds Y dV^T to the gradient of Q.
    (dr, dq), q, r = dy, saved.q, saved.r
    high = r.shape[-2]
    if r.shape[-1] == high:
        return _square_qr_backward(dr, dq, q, r)
    dv = dr[..., high:]
    dx = _square_qr_backward(dr[..., :high], dq + q @ (r[..., high:] @ transposed(dv)), q, r[..., :high])
    return np.concatenate([dx, q @ dv], -1)


def _square_qr_backward(dr: Any, dq: Any, q: Any, r: Any) -> Any:
    # For a square R; Q may have more rows than columns.
    inner = np.triu(dr @ transposed(r) - transposed(q) @ dq)
    inner = inner + transposed(np.triu(inner, 1))
    solved = call_lapack("the gradient of qr", "columns that differ", np.linalg.solve, r, transposed(dq + q @ inner))
    return transposed(solved)


def linalg_pinv(
    A: Tensor,  # noqa: N803
    *,
    atol: Tensor | float | None = None,
    rtol: Tensor | float | None = None,
    hermitian: bool = False,
) -> Tensor:
    """The pseudo-inverse of matrices [.., M, N] -> [.., N, M], by SVD, with small singular values taken as 0.

    Small: at most max(atol, rtol * the largest one); without either, rtol is the machine epsilon times max(M, N).
    hermitian changes nothing.
    """
    return pinv_(A, *_tolerances("linalg_pinv", A, atol, rtol))


@op(cast=Cast.FP32, integers="refuse")
def pinv_(input: Array, atol=None, rtol=None):
    """`linalg_pinv`, with atol and rtol as numbers or arrays."""
    _check_matrix("pinv", input)
    u, s, vh = call_iterative("pinv", lambda x: np.linalg.svd(x, full_matrices=False), input)
    large = s > _cutoff(input, s, atol, rtol)
    inverse = np.where(large, 1 / np.where(large, s, 1), 0)
    out = (transposed(vh) * inverse[..., None, :]) @ transposed(u)
    return out, Saved(input=input, out=out)


@pinv_.backward
def pinv_backward(dy, saved, needs, atol, rtol):
    # Golub and Pereyra 1973, SIAM J. Numer. Anal. 10, 413, eq. 4.12: without singular vectors, whose derivatives are
    # infinite where two singular values coincide.
    a, p, dyt = saved.input, saved.out, transposed(dy)
    pt = transposed(p)
    right, left = dyt @ p @ pt, pt @ p @ dyt
    return right - a @ (p @ right) + left - (left @ p) @ a - pt @ dy @ pt


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """`linalg_pinv`, by its older name; rcond is rtol."""
    return linalg_pinv(input, rtol=rcond)


@ignore_fp_errors()
def linalg_matrix_rank(
    A: Tensor,  # noqa: N803
    *,
    atol: Tensor | float | None = None,
    rtol: Tensor | float | None = None,
    hermitian: bool = False,
) -> Tensor:
    """The number of singular values that are not small, int64: [.., M, N] -> [..]; see `linalg_pinv`."""
    s = linalg_svdvals(A.detach()).array
    return sum(Tensor(s > _cutoff(A.array, s, *_tolerances("linalg_matrix_rank", A, atol, rtol))), -1)


def _tolerances(where: str, A: Tensor, *tolerances: Any) -> list[Any]:  # noqa: N803
    # atol and rtol as arrays or numbers; per-matrix tensors get a trailing axis to broadcast with the singular values.
    given = [g for g in tolerances if isinstance(g, Tensor)]
    for each in given:
        check_floating(where, each)
    broadcast_shape(where, A.shape[:-2], *[g.shape for g in given])
    return [g.array[..., None] if isinstance(g, Tensor) else g for g in tolerances]


def _cutoff(x: Any, s: Any, atol: Any, rtol: Any) -> Any:
    share = rtol
    if share is None:
        share = 0.0 if atol is not None else max(x.shape[-2:]) * finfo(accumulator(x.dtype)).eps
    largest = s[..., :1] * share  # in descending order
    return largest if atol is None else np.maximum(largest, atol)


eigh_.check(lambda input: check_square("eigh", input))

"""Tangents of factorizations of matrices, of which the factors are what the call saved.

Giles 2008, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation"; of the
singular vectors Townsend 2016, "Differentiating the singular value decomposition"; of QR Walter and Lehmann 2010,
arXiv:1009.6112.
"""

from __future__ import annotations

from typing import Any

from ampkit.core.dispatch.forward_rules import TangentCall
from ampkit.core.tensor import Tensor

from ..creation.constants import eye
from ..indexing.gather_scatter import gather
from ..linalg.lu import row_order
from ..linalg.matmul import matmul
from ..linalg.solvers import linalg_solve_triangular
from ..pointwise.selection import where
from ..shape.join_split import cat
from ..shape.triangular import tril, triu


def _by_gaps(x: Tensor, values: Tensor) -> Tensor:
    # x / (value j - value i) off the diagonal, 0 where x is 0.
    gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
    skipped = (x == 0).logical_or(eye(values.shape[-1], device=values.device) > 0)
    return where(skipped, 0.0, x / where(skipped, 1.0, gaps))


def _diagonal(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1)


def eigh(call: TangentCall) -> tuple[Tensor, Tensor] | None:
    """The tangents of `eigh`: of eigenvalues and eigenvectors of the symmetric part."""
    moved, values, vectors = call.tangent(0), call.saved("values"), call.saved("vectors")
    if moved is None or values is None or vectors is None:
        return None
    inner = matmul(matmul(vectors.mT, (moved + moved.mT) * 0.5), vectors)
    return _diagonal(inner), matmul(vectors, _by_gaps(inner, values))


def svd(call: TangentCall) -> tuple[Tensor, Tensor, Tensor] | None:
    """The tangents of `svd`: of singular values, and of the vectors on the left and on the right."""
    moved, u, s, vh = call.tangent(0), call.saved("u"), call.saved("s"), call.saved("vh")
    if moved is None or u is None or s is None or vh is None:
        return None
    left, right = matmul(u.mT, moved), matmul(moved, vh.mT)  # [.., k, N], [.., M, k]
    inner = matmul(left, vh.mT)
    row, column, squares = s.unsqueeze(-2), s.unsqueeze(-1), s * s
    inverse = where(row == 0, 0.0, 1 / where(row == 0, 1.0, row))
    du = matmul(u, _by_gaps(inner * row + column * inner.mT, squares)) + (right - matmul(u, inner)) * inverse
    dv = matmul(vh.mT, _by_gaps(column * inner + inner.mT * row, squares))
    dv = dv + (left.mT - matmul(vh.mT, inner.mT)) * inverse
    return _diagonal(inner), du, dv.mT


def qr(call: TangentCall) -> tuple[Tensor, Tensor] | None:
    """The tangents of `qr`: of the triangle and of the orthonormal columns.

    A matrix wider than high is [X | Y], with X = Q R and Q^T Y.
    """
    moved, q, r = call.tangent(0), call.saved("q"), call.saved("r")
    if moved is None or q is None or r is None:
        return None
    high = r.shape[-2]
    square = r[..., :high]
    given = linalg_solve_triangular(square, moved[..., :high], upper=True, left=False)
    inner = matmul(q.mT, given)
    below = tril(inner, -1)
    dr, dq = matmul(triu(inner) + below.mT, square), given - matmul(q, triu(inner) + below.mT)
    if r.shape[-1] > high:
        dr = cat([dr, matmul(q.mT, moved[..., high:] - matmul(dq, r[..., high:]))], -1)
    return dr, dq


def lu(call: TangentCall) -> tuple[Tensor, None] | None:
    """The tangent of `lu`: of the packed factors of a matrix whose rows stay exchanged as they are."""
    moved, lu = call.tangent(0), call.saved("lu")
    if moved is None or lu is None:
        return None
    (m, n), k = lu.shape[-2:], min(lu.shape[-2:])
    order = Tensor(row_order(call.items["pivots"], m)).unsqueeze(-1)
    moved = gather(moved, -2, order.expand(moved.shape))
    low, up = lu[..., :k, :k], lu[..., :k, :k]
    inner = _solved(low, moved[..., :k, :k], up)
    dlow = matmul(tril(low, -1) + eye(k, dtype=lu.dtype, device=lu.device), tril(inner, -1))
    dup = matmul(triu(inner), triu(up))
    found = dlow + dup
    if n > k:
        rest = moved[..., k:] - matmul(dlow, lu[..., k:])
        found = cat([found, linalg_solve_triangular(low, rest, upper=False, unitriangular=True)], -1)
    if m > k:
        rest = moved[..., k:, :] - matmul(lu[..., k:, :], dup)
        found = cat([found, linalg_solve_triangular(up, rest, upper=True, left=False)], -2)
    return found, None


def _solved(low: Tensor, x: Tensor, up: Tensor) -> Tensor:
    # L^-1 x U^-1 of packed factors.
    half = linalg_solve_triangular(low, x, upper=False, unitriangular=True)
    return linalg_solve_triangular(up, half, upper=True, left=False)


def singular_norm(call: TangentCall, ord: Any, **options: Any) -> Tensor | None:
    """The tangent of `singular_norm`, a norm of each matrix: its gradient times the tangent, summed up."""
    moved, gradient = call.tangent(0), call.saved("grad")
    return None if moved is None or gradient is None else (gradient * moved).sum((-2, -1))

"""Orthogonal matrices as a parametrization.

A matrix [n, k] of a layer is computed from an unconstrained one, X, by a map onto orthogonal matrices: Lezcano-Casado
and Martinez-Rubio 2019, arXiv:1901.08428 (matrix_exp, cayley), Householder reflections, and Lezcano-Casado 2019,
arXiv:1909.09501 (the product with a fixed base, "trivialization"). Of a wide matrix the transpose is computed so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends, ops
from ampkit.base.dtypes import accumulator
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core.policy import autocast
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_all

from ..module import Module
from .parametrize import register_parametrization

__all__ = ["orthogonal"]

_MAPS = ("matrix_exp", "cayley", "householder")


def orthogonal(
    module: Module, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> Module:
    """Make `module.<name>` [.., n, k] orthogonal: with orthonormal columns, or rows where n < k; returns the module.

    orthogonal_map: of a matrix X to an orthogonal one: matrix_exp, exp(A) with A = X - X^T of the lower triangle of X;
    cayley, (I - A/2)^-1 (I + A/2); householder, a product of k reflections by the columns below X's diagonal, whose
    signs the diagonal has; by default matrix_exp for square matrices, else householder. use_trivialization: multiply a
    fixed orthogonal matrix, the buffer `base` [n, n], by the map, which then begins at the identity; without it the
    attribute can be assigned for householder alone. The weight becomes the orthogonal factor of its QR decomposition.
    Computed in float32, float64 for float64 weights. Raises ArgumentError for a name that the module does not have or
    another map, ShapeError for a tensor that is no matrix.
    """
    if orthogonal_map not in (None, *_MAPS):
        needs = f"orthogonal_map that has to be one of {', '.join(_MAPS)}"
        raise ArgumentError("orthogonal", needs, repr(orthogonal_map))
    weight = getattr(module, name, None)
    if isinstance(weight, Tensor):
        if weight.ndim < 2:
            raise ShapeError("orthogonal", "a matrix, or several [.., n, k]", f"shape {tuple(weight.shape)}")
        square = weight.shape[-1] == weight.shape[-2]
        orthogonal_map = orthogonal_map or ("matrix_exp" if square else "householder")
    kind = Trivialization if use_trivialization else Householder if orthogonal_map == "householder" else Orthogonal
    return register_parametrization(module, name, kind(orthogonal_map or "householder"), unsafe=True)


class Orthogonal(Module):
    """X -> the orthogonal matrix that `orthogonal_map` makes of X."""

    def __init__(self, orthogonal_map: str):
        super().__init__()
        self.orthogonal_map = orthogonal_map

    def forward(self, x: Tensor) -> Tensor:
        with autocast(enabled=False):
            tall = _tall(x).to(accumulator(x.array.dtype))
            q = _reflections(tall) if self.orthogonal_map == "householder" else self._rotation(tall)
            return _like(x, self.on_base(q))

    def on_base(self, q: Tensor) -> Tensor:
        """The orthogonal matrix, given what the map makes of X."""
        return q

    def _rotation(self, x: Tensor) -> Tensor:
        n, k = x.shape[-2:]
        lower = ops.tril(x)
        if n > k:
            lower = ops.cat([lower, ops.zeros(*x.shape[:-1], n - k, dtype=x.dtype, device=x.device)], -1)
        a = lower - ops.transpose(lower, -1, -2)
        if self.orthogonal_map == "matrix_exp":
            return ops.matrix_exp(a)[..., :k]
        one = _eye(n, x)
        return ops.linalg_solve(one - 0.5 * a, one + 0.5 * a)[..., :k]

    def extra_repr(self) -> str:
        """The map."""
        return self.orthogonal_map


class Householder(Orthogonal):
    """X -> a product of reflections, and back."""

    def right_inverse(self, q: Tensor) -> Tensor:
        """The X whose map is the orthogonal factor of `q`: LAPACK's reflections, with their signs on the diagonal."""
        backend, wide = backends.backend_of(q.array), _tall(q).to(accumulator(q.array.dtype))
        factors, scales = np.linalg.qr(backend.to_numpy(wide.array), mode="raw")
        x = np.swapaxes(factors, -1, -2).copy()
        places = np.arange(x.shape[-1])
        x[..., places, places] = np.where(x[..., places, places] < 0, -1, 1) * np.where(scales == 0, -1, 1)
        return _like(q, Tensor(backend.asarray(np.tril(x))))


class Trivialization(Orthogonal):
    """X -> the base [.., n, n] times the map of X, which an assigned matrix becomes."""

    base: Any

    def __init__(self, orthogonal_map: str):
        super().__init__(orthogonal_map)
        self.register_buffer("base", None)

    def on_base(self, q: Tensor) -> Tensor:
        """The base times q."""
        return ops.matmul(self.base, q)

    def right_inverse(self, q: Tensor) -> Tensor:
        """Minus the identity [.., n, k], which every map makes the identity; the base becomes q, completed by columns.

        Raises ShapeError for another shape than before.
        """
        with autocast(enabled=False):
            tall = _tall(q).to(accumulator(q.array.dtype))
            n, k = tall.shape[-2:]
            if self.base is not None and (self.base.shape[:-1] != tall.shape[:-1]):
                raise ShapeError("orthogonal", f"matrices of shape [.., {n}, {k}] as before", f"{tuple(q.shape)}")
            if n > k:
                more = ops.randn(*tall.shape[:-1], n - k, dtype=tall.dtype, device=tall.device)
                tall = ops.cat([tall, more], -1)
            factor, triangle = ops.linalg_qr(tall)
            self.base = factor * ops.where(ops.diagonal(triangle, 0, -2, -1) < 0, -1.0, 1.0).unsqueeze(-2)
            return _like(q, ops.expand(-_eye(n, tall)[:, :k], (*tall.shape[:-1], k)))


def _reflections(x: Tensor) -> Tensor:
    # H_1 ... H_k = I - V T V^T with H_i = I - 2 v_i v_i^T / |v_i|^2, where T^-1 is the upper triangle of V^T V, its
    # diagonal halved (Schreiber, Van Loan 1989, SIAM J. Sci. Stat. Comput. 10(1)): the first k columns, by their signs.
    n, k = x.shape[-2:]
    v = ops.tril(x, -1) + _eye(n, x)[:, :k]
    squares = ops.matmul(ops.transpose(v, -1, -2), v)
    inverse = ops.triu(squares, 1) + ops.diag_embed(0.5 * ops.diagonal(squares, 0, -2, -1))
    top = ops.linalg_solve_triangular(inverse, ops.transpose(v[..., :k, :], -1, -2), upper=True)
    q = _eye(n, x)[:, :k] - ops.matmul(v, top)
    return q * ops.where(ops.diagonal(x.detach(), 0, -2, -1) < 0, -1.0, 1.0).unsqueeze(-2)


def _eye(n: int, like: Tensor) -> Tensor:
    return ops.eye(n, dtype=like.dtype, device=like.device)


def _tall(x: Tensor) -> Tensor:
    return ops.transpose(x, -1, -2) if x.shape[-2] < x.shape[-1] else x


def _like(x: Tensor, tall: Tensor) -> Tensor:
    """`tall` in the shape and dtype of x."""
    return (ops.transpose(tall, -1, -2) if x.shape[-2] < x.shape[-1] else tall).to(x.dtype)


check_all(globals())

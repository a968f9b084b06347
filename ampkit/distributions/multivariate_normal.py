"""Normal distributions of vectors: by a matrix of covariances, and by one of low rank and a diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from .. import linalg, ops
from ..base.errors import ArgumentError
from ..core.tensor import Tensor
from . import constraints, draws
from .distribution import LOG_2PI, Distribution, lazy_property
from .kl import register_kl

__all__ = ["LowRankMultivariateNormal", "MultivariateNormal"]


def squared_lengths(triangle: Tensor, x: Tensor) -> Tensor:
    """|L^-1 x|^2 of lower triangular L [.., n, n] and vectors x [.., n], the batches broadcast."""
    return linalg.solve_triangular(triangle, x.unsqueeze(-1), upper=False).square().sum((-2, -1))


def half_log_det(triangle: Tensor) -> Tensor:
    """The sum of the logarithms of the diagonal."""
    return triangle.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def triangle_of(given: dict[str, Tensor]) -> tuple[str, Tensor]:
    """The name of the one matrix of three that is given, and the triangle L with covariance L L^T."""
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) != 1:
        names = ", ".join(name for name, _ in found) or "none"
        raise ArgumentError("the distribution", f"one of {', '.join(given)}", names)
    name, matrix = found[0]
    if matrix.ndim < 2:
        raise ArgumentError("the distribution", f"{name} [.., n, n]", f"shape {tuple(matrix.shape)}")
    if name == "scale_tril":
        return name, matrix
    if name == "covariance_matrix":
        return name, linalg.cholesky(matrix)
    # Of the inverse, without inverting it: the triangle of the matrix with both axes reversed.
    low = linalg.cholesky(matrix.flip(-2, -1)).flip(-2, -1).mT
    identity = ops.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return name, linalg.solve_triangular(low, identity.expand(tuple(matrix.shape)), upper=False)


class OfCovariance(Distribution):
    """The covariance L L^T, a matrix [*batch_shape, n, n], its inverse and the triangle L; one is given."""

    _unbroadcasted_scale_tril: Tensor

    def _in_batch(self, matrix: Tensor) -> Tensor:
        return matrix.expand((*self.batch_shape, *matrix.shape[-2:]))

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The lower triangular L [*batch_shape, n, n]."""
        return self._in_batch(self._unbroadcasted_scale_tril)

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariances [*batch_shape, n, n]."""
        low = self._unbroadcasted_scale_tril
        return self._in_batch(low @ low.mT)

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariances [*batch_shape, n, n]."""
        low = self._unbroadcasted_scale_tril
        identity = ops.eye(low.shape[-1], dtype=low.dtype, device=low.device).expand(tuple(low.shape))
        return self._in_batch(ops.cholesky_solve(identity, low))


class MultivariateNormal(OfCovariance):
    """Vectors [.., n] of mean `loc`, by one of covariance_matrix, precision_matrix (its inverse) or scale_tril.

    scale_tril: the lower triangular L [.., n, n] of positive diagonal with covariance L L^T.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    has_rsample = True
    support = constraints.real_vector

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ):
        if loc.ndim < 1:
            raise ArgumentError(type(self).__name__, "loc [.., n]", "a number")
        given: dict[str, Any] = {
            "covariance_matrix": covariance_matrix,
            "precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        found = {name: value for name, value in given.items() if value is not None}
        if len(found) == 1:  # checked before it is factored
            (name, matrix), n = *found.items(), loc.shape[-1]
            batch = ops.broadcast_shapes(tuple(matrix.shape[:-2]), tuple(loc.shape[:-1]))
            self.loc = loc.expand((*batch, n))
            self.__dict__[name] = matrix.expand((*batch, n, n))
            super().__init__(batch, (n,), validate_args)
        name, self._unbroadcasted_scale_tril = triangle_of(given)

    mean = property(lambda self: self.loc)
    mode = property(lambda self: self.loc)

    @property
    def variance(self) -> Tensor:
        found = self._unbroadcasted_scale_tril.square().sum(-1)
        return found.expand(self._extended_shape())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = draws.normal(self._extended_shape(sample_shape), self.loc)
        return self.loc + (self._unbroadcasted_scale_tril @ drawn.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        low = self._unbroadcasted_scale_tril
        squares = squared_lengths(low, value - self.loc)
        return -0.5 * (self.event_shape[0] * LOG_2PI + squares) - half_log_det(low)

    def entropy(self) -> Tensor:
        found = 0.5 * self.event_shape[0] * (1 + LOG_2PI) + half_log_det(self._unbroadcasted_scale_tril)
        return found.expand(tuple(self.batch_shape))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        new, n = self._filled(batch_shape, _instance), self.event_shape[0]
        new.loc = self.loc.expand((*batch_shape, n))
        for name in ("covariance_matrix", "precision_matrix", "scale_tril"):
            if name in self.__dict__:
                new.__dict__[name] = self.__dict__[name].expand((*batch_shape, n, n))
        return new


class LowRankMultivariateNormal(Distribution):
    """Vectors [.., n] of mean `loc` and covariance F F^T + diag(d).

    F = `cov_factor` [.., n, k], d = `cov_diag` [.., n], above 0.

    Determinants and products with the inverse are those of matrices [k, k]: the matrix determinant lemma and
    Woodbury's identity.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    has_rsample = True
    support = constraints.real_vector

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None):
        n = loc.shape[-1] if loc.ndim else 0
        fits = loc.ndim and cov_factor.ndim >= 2 and cov_diag.ndim
        if not fits or cov_factor.shape[-2] != n or cov_diag.shape[-1] != n:
            got = f"{tuple(loc.shape)}, {tuple(cov_factor.shape)} and {tuple(cov_diag.shape)}"
            raise ArgumentError(type(self).__name__, "loc [.., n], cov_factor [.., n, k], cov_diag [.., n]", got)
        shapes = (tuple(loc.shape[:-1]), tuple(cov_factor.shape[:-2]), tuple(cov_diag.shape[:-1]))
        batch = ops.broadcast_shapes(*shapes)
        self.loc, self.cov_diag = loc.expand((*batch, n)), cov_diag.expand((*batch, n))
        self.cov_factor = cov_factor.expand((*batch, *cov_factor.shape[-2:]))
        super().__init__(batch, (n,), validate_args)

    mean = property(lambda self: self.loc)
    mode = property(lambda self: self.loc)
    variance = property(lambda self: self.cov_factor.square().sum(-1) + self.cov_diag)

    @lazy_property
    def _capacitance_tril(self) -> Tensor:
        # The triangle of I + F^T diag(1 / d) F.
        w = self.cov_factor
        inner = w.mT @ (w / self.cov_diag.unsqueeze(-1))
        return linalg.cholesky(inner + ops.eye(w.shape[-1], dtype=w.dtype, device=w.device))

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariances [*batch_shape, n, n]."""
        return self.cov_factor @ self.cov_factor.mT + self.cov_diag.diag_embed()

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariances [*batch_shape, n, n]."""
        scaled = (self.cov_factor / self.cov_diag.unsqueeze(-1)).mT
        inner = linalg.solve_triangular(self._capacitance_tril, scaled, upper=False)
        return self.cov_diag.reciprocal().diag_embed() - inner.mT @ inner

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The lower triangular L with covariance L L^T."""
        return linalg.cholesky(self.covariance_matrix)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        of_factor = draws.normal((*shape[:-1], self.cov_factor.shape[-1]), self.loc)
        along = (self.cov_factor @ of_factor.unsqueeze(-1)).squeeze(-1)
        return self.loc + along + self.cov_diag.sqrt() * draws.normal(shape, self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        x = value - self.loc
        inner = (self.cov_factor.mT @ (x / self.cov_diag).unsqueeze(-1)).squeeze(-1)
        squares = (x.square() / self.cov_diag).sum(-1) - squared_lengths(self._capacitance_tril, inner)
        return -0.5 * (self.event_shape[0] * LOG_2PI + self._log_det() + squares)

    def _log_det(self) -> Tensor:
        return 2 * half_log_det(self._capacitance_tril) + self.cov_diag.log().sum(-1)

    def entropy(self) -> Tensor:
        return 0.5 * (self.event_shape[0] * (1 + LOG_2PI) + self._log_det())


Either = MultivariateNormal | LowRankMultivariateNormal


def _vectors(p: Either, q: Either) -> Tensor:
    low_p, low_q = p.scale_tril, q.scale_tril
    if p.event_shape != q.event_shape:
        raise ArgumentError("kl_divergence", "events of one length", f"{p.event_shape} and {q.event_shape}")
    shape = ops.broadcast_shapes(tuple(low_p.shape), tuple(low_q.shape))
    trace = linalg.solve_triangular(low_q.expand(shape), low_p.expand(shape), upper=False).square().sum((-2, -1))
    away = squared_lengths(low_q, p.loc - q.loc)
    return half_log_det(low_q) - half_log_det(low_p) + 0.5 * (trace + away - p.event_shape[0])


for _kind in (MultivariateNormal, LowRankMultivariateNormal):
    for _other in (MultivariateNormal, LowRankMultivariateNormal):
        register_kl(_kind, _other)(_vectors)

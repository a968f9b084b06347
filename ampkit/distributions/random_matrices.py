"""Distributions of matrices: Wishart, and Cholesky factors of correlation matrices by Lewandowski, Kurowicka, Joe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import linalg, ops
from ..base.errors import ArgumentError
from ..core.tensor import Tensor
from ..special import multigammaln
from . import constraints, draws
from .beta import Beta
from .distribution import Distribution, ExponentialFamily, parameters
from .draws import LOG_2
from .kl import register_kl
from .multivariate_normal import OfCovariance, half_log_det, triangle_of

__all__ = ["LKJCholesky", "Wishart"]


class Wishart(OfCovariance, ExponentialFamily):
    """The sum of x x^T over `df` vectors x [n] of a Normal of mean 0: matrices [.., n, n]; df above n - 1.

    By one of covariance_matrix, precision_matrix (its inverse) or scale_tril, as MultivariateNormal.
    """

    arg_constraints = {
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
        "df": constraints.greater_than(0),
    }
    has_rsample = True
    support = constraints.positive_definite

    def __init__(
        self,
        df: Tensor | float,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ):
        given: dict[str, Any] = {
            "covariance_matrix": covariance_matrix,
            "precision_matrix": precision_matrix,
            "scale_tril": scale_tril,
        }
        name, self._unbroadcasted_scale_tril = triangle_of(given)
        matrix = given[name]
        n = matrix.shape[-1]
        degrees = df.to(matrix.dtype) if isinstance(df, Tensor) else ops.full_like(matrix[..., 0, 0], float(df))
        batch = ops.broadcast_shapes(tuple(matrix.shape[:-2]), tuple(degrees.shape))
        self.df = degrees.expand(batch)
        self.__dict__[name] = matrix.expand((*batch, n, n))
        super().__init__(batch, (n, n), validate_args)
        self._need("df", self.df > n - 1, f"above {n - 1}")

    @property
    def mean(self) -> Tensor:
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        factor = self.df - self.event_shape[-1] - 1
        return ops.where(factor > 0, factor, math.nan)[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        v = self.covariance_matrix
        diagonal = v.diagonal(dim1=-2, dim2=-1)
        return self.df[..., None, None] * (v.square() + diagonal[..., :, None] * diagonal[..., None, :])

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        # Bartlett's decomposition: square roots of chi-squared numbers on the diagonal, normal ones below.
        shape, n = self._extended_shape(sample_shape), self.event_shape[-1]
        degrees = self.df[..., None] - ops.arange(n, dtype=self.df.dtype, device=self.df.device)
        chi = (2 * draws.gamma(0.5 * degrees, shape[:-1])).sqrt()
        low = draws.normal(shape, self.df).tril(-1) + chi.diag_embed()
        product = self._unbroadcasted_scale_tril @ low
        return product @ product.mT

    def log_prob(self, value: Tensor) -> Tensor:
        self._need_event(value)
        n, df, low = self.event_shape[-1], self.df, self._unbroadcasted_scale_tril
        half_det = half_log_det(linalg.cholesky(value))
        trace = ops.cholesky_solve(value, low.expand(ops.broadcast_shapes(tuple(low.shape), tuple(value.shape))))
        trace = trace.diagonal(dim1=-2, dim2=-1).sum(-1)
        return (df - n - 1) * half_det - 0.5 * trace - self._log_constant()

    def _log_constant(self) -> Tensor:
        n, df = self.event_shape[-1], self.df
        return df * (n * LOG_2 / 2 + half_log_det(self._unbroadcasted_scale_tril)) + multigammaln(df / 2, n)

    def entropy(self) -> Tensor:
        n, df = self.event_shape[-1], self.df
        return self._log_constant() - (df - n - 1) / 2 * self._mean_log_det() + n * df / 2

    def _mean_log_det(self) -> Tensor:
        # Of the matrix: sum of digamma((df - i) / 2), n log 2 and the logarithm of the covariance's determinant.
        n = self.event_shape[-1]
        steps = ops.arange(n, dtype=self.df.dtype, device=self.df.device)
        total = ops.digamma((self.df[..., None] - steps) / 2).sum(-1)
        return total + n * LOG_2 + 2 * half_log_det(self._unbroadcasted_scale_tril)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        n = self.event_shape[-1]
        return -self.precision_matrix / 2, ((self.df - n - 1) / 2)[..., None, None].expand(self._extended_shape())


class LKJCholesky(Distribution):
    """Cholesky factors [.., dim, dim] of correlation matrices R, of density det(R)^(concentration - 1) in R.

    concentration 1: R is uniform; above: near the identity. Lewandowski, Kurowicka and Joe 2009, J. Multivar. Anal.
    100, 1989: the onion method of section 3.2.
    """

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(self, dim: int, concentration: Tensor | float = 1.0, validate_args: bool | None = None):
        if dim < 2:
            raise ArgumentError("LKJCholesky", "dim from 2", str(dim))
        self.dim = dim
        (self.concentration,) = parameters(concentration)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        a = self.concentration.detach()[..., None]
        row = ops.arange(1, self.dim, dtype=a.dtype, device=a.device)
        squares = Beta(row / 2, a + (self.dim - 1 - row) / 2, validate_args=False).sample(sample_shape)
        squares = ops.pad(squares, (1, 0))[..., None]  # of the part below the diagonal, row by row
        drawn = draws.normal(shape, a).tril(-1)
        lengths = linalg.norm(drawn, dim=-1, keepdim=True)
        sphere = drawn / ops.where(lengths > 0, lengths, 1.0)
        rest = (1 - squares[..., 0]).clamp(min=1e-30).sqrt()
        return squares.sqrt() * sphere + rest.diag_embed()

    def log_prob(self, value: Tensor) -> Tensor:
        self._need_event(value)
        n, a = self.dim, self.concentration
        row = ops.arange(1, n, dtype=a.dtype, device=a.device)
        order = 2 * (a - 1)[..., None] + n - 1 - row
        logs = (order * value.diagonal(dim1=-2, dim2=-1)[..., 1:].log()).sum(-1)
        half = a + 0.5 * (n - 1)
        constant = 0.5 * (n - 1) * math.log(math.pi) + multigammaln(half - 0.5, n - 1) - (n - 1) * half.lgamma()
        return logs - constant


@register_kl(Wishart, Wishart)
def _wisharts(p: Wishart, q: Wishart) -> Tensor:
    n = p.event_shape[-1]
    trace = ops.cholesky_solve(p.covariance_matrix, q.scale_tril).diagonal(dim1=-2, dim2=-1).sum(-1)
    away = 0.5 * (p.df - q.df) * p._mean_log_det() - 0.5 * p.df * n + 0.5 * p.df * trace
    return q._log_constant() - p._log_constant() + away

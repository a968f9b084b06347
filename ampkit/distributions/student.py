"""Cauchy's and Student's distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import ops
from ..core.tensor import Tensor
from . import constraints, draws
from .continuous import LocationScale
from .distribution import Distribution, parameters
from .kl import register_kl

__all__ = ["Cauchy", "StudentT"]


class Cauchy(LocationScale):
    """Density 1 / (pi scale (1 + z^2)) with z = (x - loc) / scale; it has no mean."""

    mean = property(lambda self: ops.full_like(self.loc, math.nan))
    variance = property(lambda self: ops.full_like(self.loc, math.inf))

    def log_prob(self, value: Tensor) -> Tensor:
        return -math.log(math.pi) - self.scale.log() - ops.log1p(((value - self.loc) / self.scale).square())

    def cdf(self, value: Tensor) -> Tensor:
        return ops.atan((value - self.loc) / self.scale) / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return ops.tan(math.pi * (value - 0.5)) * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + self.scale.log()


class StudentT(Distribution):
    """loc + scale t, t of Student's distribution of `df` degrees of freedom."""

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    has_rsample = True
    support = constraints.real

    def __init__(
        self,
        df: Tensor | float,
        loc: Tensor | float = 0.0,
        scale: Tensor | float = 1.0,
        validate_args: bool | None = None,
    ):
        self.df, self.loc, self.scale = parameters(df, loc, scale)
        super().__init__(self.df.shape, (), validate_args)

    mean = property(lambda self: ops.where(self.df <= 1, math.nan, self.loc))
    mode = property(lambda self: self.loc)

    @property
    def variance(self) -> Tensor:
        inner = ops.where(self.df > 2, self.df, 3.0)
        finite = self.scale.square() * inner / (inner - 2)
        return ops.where(self.df > 2, finite, ops.where(self.df > 1, math.inf, math.nan))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        half_chi2 = draws.gamma(0.5 * self.df, shape)
        t = draws.normal(shape, self.df) * (2 * half_chi2 / self.df).rsqrt()
        return draws.in_range(self.loc + self.scale * t)

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        return -0.5 * (self.df + 1) * ops.log1p(z.square() / self.df) - self.scale.log() - self._log_beta()

    def entropy(self) -> Tensor:
        rise = ops.digamma(0.5 * (self.df + 1)) - ops.digamma(0.5 * self.df)
        return self.scale.log() + 0.5 * (self.df + 1) * rise + self._log_beta()

    def _log_beta(self) -> Tensor:
        # log(sqrt(df) B(df / 2, 1 / 2))
        half = 0.5 * self.df
        return 0.5 * (self.df.log() + math.log(math.pi)) + half.lgamma() - (half + 0.5).lgamma()


@register_kl(Cauchy, Cauchy)
def _cauchys(p: Cauchy, q: Cauchy) -> Tensor:
    # Chyzak and Nielsen 2019, arXiv:1905.10965.
    apart = (p.scale + q.scale).square() + (p.loc - q.loc).square()
    return (apart / (4 * p.scale * q.scale)).log()

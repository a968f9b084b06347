"""The gamma distribution, its inverse, chi-squared, and the ratio of two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..core.tensor import Tensor
from ..ops.pointwise.incomplete_gamma import gammainc
from . import constraints, draws, transforms
from .distribution import Distribution, ExponentialFamily, like, parameters
from .kl import register_kl
from .transformed import TransformedDistribution

__all__ = ["Chi2", "FisherSnedecor", "Gamma", "InverseGamma"]


class Gamma(ExponentialFamily):
    """Density rate^a x^(a - 1) exp(-rate x) / gamma(a), a = `concentration`, of numbers from 0.

    Samples are differentiable in both: Figurnov, Mohamed and Mnih 2018, arXiv:1805.08498.
    """

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    has_rsample = True
    support = constraints.nonnegative
    _interior = 1.0

    def __init__(self, concentration: Tensor | float, rate: Tensor | float, validate_args: bool | None = None):
        self.concentration, self.rate = parameters(concentration, rate)
        super().__init__(self.concentration.shape, (), validate_args)

    mean = property(lambda self: self.concentration / self.rate)
    mode = property(lambda self: ((self.concentration - 1) / self.rate).clamp(min=0))
    variance = property(lambda self: self.concentration / self.rate.square())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = draws.gamma(self.concentration, self._extended_shape(sample_shape))
        return draws.in_range(drawn / self.rate, positive=True)

    def log_prob(self, value: Tensor | float) -> Tensor:
        return super().log_prob(like(value, self.rate))

    def _log_density(self, x: Tensor) -> Tensor:
        a, rate = self.concentration, self.rate
        return ops.xlogy(a, rate) + ops.xlogy(a - 1, x) - rate * x - a.lgamma()

    def cdf(self, value: Tensor) -> Tensor:
        return gammainc(self.concentration, self.rate * value.clamp(min=0))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * ops.digamma(a)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return self.concentration - 1, -self.rate

    def _log_normalizer(self, x: Any, y: Any) -> Tensor:
        return (x + 1).lgamma() - (x + 1) * (-y).log()


class Chi2(Gamma):
    """The sum of `df` squares of standard normal numbers: Gamma(df / 2, 1 / 2)."""

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Tensor | float, validate_args: bool | None = None):
        (given,) = parameters(df)
        super().__init__(0.5 * given, 0.5, validate_args)

    df = property(lambda self: 2 * self.concentration)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        new = super().expand(batch_shape, _instance)
        for name in ("concentration", "rate"):
            setattr(new, name, getattr(self, name).expand(tuple(batch_shape)))
        return new


class InverseGamma(TransformedDistribution):
    """1 / x of a Gamma(concentration, rate)."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    has_rsample = True
    _interior = 1.0

    def __init__(self, concentration: Tensor | float, rate: Tensor | float, validate_args: bool | None = None):
        base = Gamma(concentration, rate, validate_args=False)
        super().__init__(base, transforms.PowerTransform(-ops.ones_like(base.rate)), validate_args)

    concentration = property(lambda self: self.base_dist.concentration)
    rate = property(lambda self: self.base_dist.rate)
    mode = property(lambda self: self.rate / (self.concentration + 1))

    @property
    def mean(self) -> Tensor:
        a = self.concentration
        return ops.where(a > 1, self.rate / (a - 1).clamp(min=1e-30), math.inf)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        inner = ops.where(a > 2, a, 3.0)
        return ops.where(a > 2, self.rate.square() / ((inner - 1).square() * (inner - 2)), math.inf)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * ops.digamma(a)


class FisherSnedecor(Distribution):
    """The ratio of two Chi2 of `df1` and `df2` degrees of freedom, each divided by its own."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    has_rsample = True
    support = constraints.positive
    _interior = 1.0

    def __init__(self, df1: Tensor | float, df2: Tensor | float, validate_args: bool | None = None):
        self.df1, self.df2 = parameters(df1, df2)
        super().__init__(self.df1.shape, (), validate_args)

    @property
    def mean(self) -> Tensor:
        inner = ops.where(self.df2 > 2, self.df2, 3.0)
        return ops.where(self.df2 > 2, inner / (inner - 2), math.nan)

    @property
    def mode(self) -> Tensor:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return ops.where(self.df1 > 2, found, math.nan)

    @property
    def variance(self) -> Tensor:
        d = ops.where(self.df2 > 4, self.df2, 5.0)
        found = 2 * d.square() * (self.df1 + d - 2) / (self.df1 * (d - 2).square() * (d - 4))
        return ops.where(self.df2 > 4, found, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        logs = draws.log_gamma(0.5 * self.df1, shape) - draws.log_gamma(0.5 * self.df2, shape)
        return draws.in_range((logs + self.df2.log() - self.df1.log()).exp(), positive=True)

    def _log_density(self, x: Tensor) -> Tensor:
        a, b, ratio = 0.5 * self.df1, 0.5 * self.df2, self.df1 / self.df2
        return a * ratio.log() + (a - 1) * x.log() - (a + b) * ops.log1p(ratio * x) - draws.log_beta(a, b)


@register_kl(Gamma, Gamma)
def _gammas(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    shape = b.lgamma() - a.lgamma() + (a - b) * ops.digamma(a)
    return b * (p.rate / q.rate).log() + shape + a * (q.rate / p.rate - 1)

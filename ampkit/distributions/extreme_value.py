"""Distributions of extremes: Gumbel, Weibull, Pareto and the generalized Pareto distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import ops
from ..base import dtypes
from ..core.tensor import Tensor
from . import constraints, draws, transforms
from .continuous import Exponential, Uniform
from .distribution import Distribution, parameters
from .draws import EULER
from .kl import register_kl
from .transformed import TransformedDistribution

__all__ = ["GeneralizedPareto", "Gumbel", "Pareto", "Weibull"]


class Gumbel(TransformedDistribution):
    """loc - scale log(-log(u)) of a uniform u: the largest of many numbers."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None):
        self.loc, self.scale = parameters(loc, scale)
        limits = dtypes.finfo(self.loc.dtype)
        base = Uniform(
            ops.full_like(self.loc, limits.tiny), ops.full_like(self.loc, 1 - limits.eps), validate_args=False
        )
        log = transforms.ExpTransform().inv
        minus = transforms.AffineTransform(0.0, -ops.ones_like(self.scale))
        chain = [log, minus, log, transforms.AffineTransform(self.loc, -self.scale)]
        super().__init__(base, chain, validate_args)

    mean = property(lambda self: self.loc + self.scale * EULER)
    mode = property(lambda self: self.loc)
    stddev = property(lambda self: self.scale * (math.pi / math.sqrt(6)))
    variance = property(lambda self: self.stddev.square())

    def log_prob(self, value: Tensor) -> Tensor:
        z = (self.loc - value) / self.scale
        return z - z.exp() - self.scale.log()

    def cdf(self, value: Tensor | float) -> Tensor:
        return (-((self.loc - value) / self.scale).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)


class Weibull(TransformedDistribution):
    """scale e^(1 / concentration) of an Exponential e of rate 1."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive
    _interior = 1.0

    def __init__(self, scale: Tensor | float, concentration: Tensor | float, validate_args: bool | None = None):
        self.scale, self.concentration = parameters(scale, concentration)
        power = transforms.PowerTransform(self.concentration.reciprocal())
        base = Exponential(ops.ones_like(self.scale), validate_args=False)
        super().__init__(base, [power, transforms.AffineTransform(0.0, self.scale)], validate_args)

    def _moment(self, n: int) -> Tensor:
        return (1 + n / self.concentration).lgamma().exp() * self.scale**n

    mean = property(lambda self: self._moment(1))
    variance = property(lambda self: self._moment(2) - self._moment(1).square())

    @property
    def mode(self) -> Tensor:
        k = self.concentration
        return self.scale * ((k - 1).clamp(min=0) / k) ** k.reciprocal()

    def entropy(self) -> Tensor:
        k = self.concentration
        return EULER * (1 - k.reciprocal()) + (self.scale / k).log() + 1


class Pareto(TransformedDistribution):
    """scale exp(e) of an Exponential e of rate `alpha`: values from `scale` on."""

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}

    def __init__(self, scale: Tensor | float, alpha: Tensor | float, validate_args: bool | None = None):
        self.scale, self.alpha = parameters(scale, alpha)
        base = Exponential(self.alpha, validate_args=False)
        chain = [transforms.ExpTransform(), transforms.AffineTransform(0.0, self.scale)]
        super().__init__(base, chain, validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.greater_than_eq(self.scale)

    _interior = property(lambda self: 2 * self.scale)
    mode = property(lambda self: self.scale)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return draws.in_range(super().rsample(sample_shape), positive=True)

    def cdf(self, value: Tensor) -> Tensor:
        return 1 - (self.scale / ops.maximum(value, self.scale)) ** self.alpha

    @property
    def mean(self) -> Tensor:
        inner = ops.where(self.alpha > 1, self.alpha, 2.0)
        return ops.where(self.alpha > 1, inner * self.scale / (inner - 1), math.inf)

    @property
    def variance(self) -> Tensor:
        a = ops.where(self.alpha > 2, self.alpha, 3.0)
        return ops.where(self.alpha > 2, self.scale.square() * a / ((a - 1).square() * (a - 2)), math.inf)

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + 1 + self.alpha.reciprocal()


class GeneralizedPareto(Distribution):
    """Survival (1 + c z)^(-1 / c), or exp(-z) for c = 0, z = (x - loc) / scale from 0, c = `concentration`."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive, "concentration": constraints.real}
    has_rsample = True

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        concentration: Tensor | float,
        validate_args: bool | None = None,
    ):
        self.loc, self.scale, self.concentration = parameters(loc, scale, concentration)
        super().__init__(self.loc.shape, (), validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        c = self.concentration
        end = self.loc - self.scale / ops.where(c < 0, c, -1.0)
        return constraints.interval(self.loc, ops.where(c < 0, end, math.inf))

    def _parts(self) -> tuple[Tensor, Tensor]:
        # Whether concentration is 0, to the spacing of the dtype, and a number that is not.
        near = self.concentration.abs() < dtypes.finfo(self.concentration.dtype).eps
        return near, ops.where(near, 1.0, self.concentration)

    def _survival_log(self, value: Tensor) -> Tensor:
        near, c = self._parts()
        z = (value - self.loc) / self.scale
        return ops.where(near, -z, -ops.log1p(ops.where(near, 0.0, c * z)) / c)

    @property
    def _interior(self) -> Tensor:
        end = ops.where(self.concentration < 0, -1 / ops.where(self.concentration < 0, self.concentration, -1.0), 1.0)
        return self.loc + 0.5 * self.scale * end

    def _log_density(self, value: Tensor) -> Tensor:
        return (1 + self.concentration) * self._survival_log(value) - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        low, high = self.support.lower_bound, self.support.upper_bound
        return -ops.expm1(self._survival_log(ops.minimum(ops.maximum(value, low), high)))

    def icdf(self, value: Tensor) -> Tensor:
        near, c = self._parts()
        e = -ops.log1p(-value)
        return self.loc + self.scale * ops.where(near, e, ops.expm1(c * e) / c)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return draws.in_range(self.icdf(draws.uniform(self._extended_shape(sample_shape), self.loc)))

    mode = property(lambda self: self.loc)

    @property
    def mean(self) -> Tensor:
        c = self.concentration
        return ops.where(c < 1, self.loc + self.scale / (1 - ops.where(c < 1, c, 0.0)), math.inf)

    @property
    def variance(self) -> Tensor:
        c = ops.where(self.concentration < 0.5, self.concentration, 0.0)
        found = self.scale.square() / ((1 - c).square() * (1 - 2 * c))
        return ops.where(self.concentration < 0.5, found, math.inf)

    def entropy(self) -> Tensor:
        return self.scale.log() + self.concentration + 1


@register_kl(Gumbel, Gumbel)
def _gumbels(p: Gumbel, q: Gumbel) -> Tensor:
    ratio, away = p.scale / q.scale, (q.loc - p.loc) / q.scale
    return -ratio.log() - away + ratio * EULER + (away + (1 + ratio).lgamma()).exp() - (1 + EULER)


@register_kl(Pareto, Pareto)
def _paretos(p: Pareto, q: Pareto) -> Tensor:
    ratio = q.alpha / p.alpha
    found = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return ops.where(p.scale < q.scale, math.inf, found)

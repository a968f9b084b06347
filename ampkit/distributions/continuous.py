"""Normal, Laplace, uniform and exponential distributions, by their standard formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..base import dtypes
from ..core.tensor import Tensor
from . import constraints, draws
from .distribution import LOG_2PI, Distribution, ExponentialFamily, parameters
from .kl import register_kl

__all__ = ["Exponential", "Laplace", "Normal", "Uniform"]


class LocationScale(Distribution):
    """loc + scale z, `scale` above 0, of a number z whose density is symmetric about 0."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    has_rsample = True
    support = constraints.real

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None):
        self.loc, self.scale = parameters(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)

    mean = property(lambda self: self.loc)
    mode = property(lambda self: self.loc)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return draws.in_range(self.icdf(draws.uniform(self._extended_shape(sample_shape), self.loc, True)))


class Normal(LocationScale, ExponentialFamily):
    """Mean `loc`, standard deviation `scale` above 0."""

    stddev = property(lambda self: self.scale)
    variance = property(lambda self: self.scale.square())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return draws.in_range(self.loc + self.scale * draws.normal(self._extended_shape(sample_shape), self.loc))

    def log_prob(self, value: Tensor) -> Tensor:
        return -0.5 * ((value - self.loc) / self.scale).square() - self.scale.log() - 0.5 * LOG_2PI

    def cdf(self, value: Tensor) -> Tensor:
        return 0.5 * ops.erfc((self.loc - value) / (self.scale * math.sqrt(2)))

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * ops.erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Tensor:
        return self.scale.log() + 0.5 * (1 + LOG_2PI)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        variance = self.scale.square()
        return self.loc / variance, -0.5 * variance.reciprocal()

    def _log_normalizer(self, x: Any, y: Any) -> Tensor:
        return -0.25 * x.square() / y + 0.5 * (-math.pi / y).log()


class Laplace(LocationScale):
    """Density exp(-|x - loc| / scale) / (2 scale), `scale` above 0."""

    variance = property(lambda self: 2 * self.scale.square())

    def log_prob(self, value: Tensor) -> Tensor:
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * ops.expm1(-away.abs() / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        away = value - 0.5
        return self.loc - self.scale * away.sign() * ops.log1p(-2 * away.abs())

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()


class Uniform(Distribution):
    """Equal density from `low` to `high`, which is above it."""

    has_rsample = True

    def __init__(self, low: Tensor | float, high: Tensor | float, validate_args: bool | None = None):
        self.low, self.high = parameters(low, high)
        super().__init__(self.low.shape, (), validate_args)
        self._need("high", self.high > self.low, "above low")

    arg_constraints = {
        "low": constraints.dependent(is_discrete=False, event_dim=0),
        "high": constraints.dependent(is_discrete=False, event_dim=0),
    }

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.half_open_interval(self.low, self.high)

    mean = property(lambda self: 0.5 * (self.low + self.high))
    mode = property(lambda self: self.high * math.nan)
    variance = property(lambda self: (self.high - self.low).square() / 12)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = draws.uniform(self._extended_shape(sample_shape), self.low)
        drawn = 2 * (0.5 * self.low + self._half_width() * u)
        spacing = self.high.abs() * (0.75 * dtypes.finfo(self.high.dtype).eps)
        below = ops.maximum(self.high - spacing, self.low)
        return ops.where(drawn < self.high, drawn, below)  # a sum that was rounded up to the bound

    def log_prob(self, value: Tensor) -> Tensor:
        inside = (value >= self.low) & (value < self.high)
        return ops.where(inside, -self.entropy(), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * value

    def entropy(self) -> Tensor:
        return self._half_width().log() + math.log(2)

    def _half_width(self) -> Tensor:
        return 0.5 * self.high - 0.5 * self.low  # the width itself may overflow


class Exponential(ExponentialFamily):
    """Density rate exp(-rate x) for x from 0, `rate` above 0."""

    arg_constraints = {"rate": constraints.positive}
    has_rsample = True
    support = constraints.nonnegative

    def __init__(self, rate: Tensor | float, validate_args: bool | None = None):
        (self.rate,) = parameters(rate)
        super().__init__(self.rate.shape, (), validate_args)

    mean = property(lambda self: self.rate.reciprocal())
    mode = property(lambda self: ops.zeros_like(self.rate))
    stddev = property(lambda self: self.rate.reciprocal())
    variance = property(lambda self: self.rate.square().reciprocal())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = draws.uniform(self._extended_shape(sample_shape), self.rate, True)
        return draws.in_range(-ops.log1p(-u) / self.rate, positive=True)

    def log_prob(self, value: Tensor) -> Tensor:
        return ops.where(value >= 0, self.rate.log() - self.rate * value, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        return -ops.expm1(-self.rate * value.clamp(min=0))

    def icdf(self, value: Tensor) -> Tensor:
        return -ops.log1p(-value) / self.rate

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (-self.rate,)

    def _log_normalizer(self, x: Any) -> Tensor:
        return -(-x).log()


@register_kl(Normal, Normal)
def _normals(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())


@register_kl(Uniform, Uniform)
def _uniforms(p: Uniform, q: Uniform) -> Tensor:
    inside = (q.low <= p.low) & (q.high >= p.high)
    return ops.where(inside, ((q.high - q.low) / (p.high - p.low)).log(), math.inf)


@register_kl(Exponential, Exponential)
def _exponentials(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


@register_kl(Laplace, Laplace)
def _laplaces(p: Laplace, q: Laplace) -> Tensor:
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return away / q.scale + ratio * (-away / p.scale).exp() - 1 - ratio.log()

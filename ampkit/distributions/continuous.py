"""Distributions of real numbers, by their standard formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import ops
from ..base import dtypes
from ..core.tensor import Tensor
from . import constraints
from .distribution import LOG_2PI, Distribution, parameters, register_kl

__all__ = ["Exponential", "Laplace", "LogNormal", "Normal", "Uniform"]


class _LocationScale(Distribution):
    names = ("loc", "scale")
    has_rsample = True
    support = constraints.real

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None):
        self.loc, self.scale = parameters(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)
        self._need("scale", self.scale > 0, "above 0")

    mean = property(lambda self: self.loc)


class Normal(_LocationScale):
    """Mean `loc`, standard deviation `scale` above 0."""

    mode = property(lambda self: self.loc)
    stddev = property(lambda self: self.scale)
    variance = property(lambda self: self.scale.square())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = ops.randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return _in_range(self.loc + self.scale * drawn)

    def log_prob(self, value: Tensor) -> Tensor:
        return -0.5 * ((value - self.loc) / self.scale).square() - self.scale.log() - 0.5 * LOG_2PI

    def cdf(self, value: Tensor) -> Tensor:
        return 0.5 * ops.erfc((self.loc - value) / (self.scale * math.sqrt(2)))

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * ops.erfinv(2 * value - 1) * math.sqrt(2)

    def entropy(self) -> Tensor:
        return self.scale.log() + 0.5 * (1 + LOG_2PI)


class LogNormal(Distribution):
    """exp of a Normal of mean `loc` and standard deviation `scale`."""

    names = ("loc", "scale")
    has_rsample = True
    support = constraints.positive

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None):
        self.base_dist = Normal(loc, scale, validate_args)
        self.loc, self.scale = self.base_dist.loc, self.base_dist.scale
        super().__init__(self.loc.shape, (), validate_args)

    mean = property(lambda self: (self.loc + 0.5 * self.scale.square()).exp())
    variance = property(lambda self: ops.expm1(self.scale.square()) * (2 * self.loc + self.scale.square()).exp())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return _in_range(self.base_dist.rsample(sample_shape).exp(), positive=True)

    def log_prob(self, value: Tensor) -> Tensor:
        log = ops.where(value > 0, value, 1.0).log()
        return ops.where(value > 0, self.base_dist.log_prob(log) - log, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        return ops.where(value > 0, self.base_dist.cdf(ops.where(value > 0, value, 1.0).log()), 0.0)

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf(value).exp()

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class Uniform(Distribution):
    """Equal density from `low` to `high`, which is above it."""

    names = ("low", "high")
    has_rsample = True

    def __init__(self, low: Tensor | float, high: Tensor | float, validate_args: bool | None = None):
        self.low, self.high = parameters(low, high)
        super().__init__(self.low.shape, (), validate_args)
        self._need("high", self.high > self.low, "above low")

    support = property(lambda self: constraints.half_open_interval(self.low, self.high))
    mean = property(lambda self: 0.5 * (self.low + self.high))
    variance = property(lambda self: (self.high - self.low).square() / 12)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = _uniform(self._shape(sample_shape), self.low)
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


class Exponential(Distribution):
    """Density rate exp(-rate x) for x from 0, `rate` above 0."""

    names = ("rate",)
    has_rsample = True
    support = constraints.nonnegative

    def __init__(self, rate: Tensor | float, validate_args: bool | None = None):
        (self.rate,) = parameters(rate)
        super().__init__(self.rate.shape, (), validate_args)
        self._need("rate", self.rate > 0, "above 0")

    mean = property(lambda self: self.rate.reciprocal())
    variance = property(lambda self: self.rate.square().reciprocal())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return _in_range(-ops.log1p(-_uniform(self._shape(sample_shape), self.rate, True)) / self.rate, positive=True)

    def log_prob(self, value: Tensor) -> Tensor:
        return ops.where(value >= 0, self.rate.log() - self.rate * value, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        return -ops.expm1(-self.rate * value.clamp(min=0))

    def icdf(self, value: Tensor) -> Tensor:
        return -ops.log1p(-value) / self.rate

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()


class Laplace(_LocationScale):
    """Density exp(-|x - loc| / scale) / (2 scale), `scale` above 0."""

    variance = property(lambda self: 2 * self.scale.square())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return _in_range(self.icdf(_uniform(self._shape(sample_shape), self.loc, True)))

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


def _uniform(shape: tuple[int, ...], like: Tensor, positive: bool = False) -> Tensor:
    # From [0, 1), or `positive`: from (0, 1), so far from 0 that 2 u - 1 is not -1.
    drawn = ops.rand(shape, dtype=like.dtype, device=like.device)
    return drawn.clamp(min=dtypes.finfo(like.dtype).eps / 4) if positive else drawn


def _in_range(values: Tensor, positive: bool = False) -> Tensor:
    # Values beyond the dtype's range become its largest number, or its smallest one above 0.
    limits = dtypes.finfo(values.dtype)
    return values.clamp(limits.tiny if positive else limits.min, limits.max)


@register_kl(Normal, Normal)
def _normals(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())


@register_kl(LogNormal, LogNormal)
def _log_normals(p: LogNormal, q: LogNormal) -> Tensor:
    return _normals(p.base_dist, q.base_dist)


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

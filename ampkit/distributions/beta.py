"""Distributions over [0, 1] and over vectors of sum 1: Beta, Dirichlet, Kumaraswamy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..base.errors import ArgumentError
from ..core.tensor import Tensor
from . import constraints, draws, transforms
from .continuous import Uniform
from .distribution import ExponentialFamily, parameters
from .kl import register_kl
from .transformed import TransformedDistribution

__all__ = ["Beta", "Dirichlet", "Kumaraswamy"]


class Beta(ExponentialFamily):
    """Density x^(a - 1) (1 - x)^(b - 1) / B(a, b), a = `concentration1`, b = `concentration0`.

    Samples are differentiable in both, as ratios of Gamma draws.
    """

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    has_rsample = True
    support = constraints.unit_interval
    _interior = 0.5

    def __init__(
        self, concentration1: Tensor | float, concentration0: Tensor | float, validate_args: bool | None = None
    ):
        self.concentration1, self.concentration0 = parameters(concentration1, concentration0)
        super().__init__(self.concentration1.shape, (), validate_args)

    total = property(lambda self: self.concentration1 + self.concentration0)
    mean = property(lambda self: self.concentration1 / self.total)
    variance = property(
        lambda self: self.concentration1 * self.concentration0 / (self.total.square() * (self.total + 1))
    )

    @property
    def mode(self) -> Tensor:
        return _mode(ops.stack([self.concentration1, self.concentration0], -1))[..., 0]

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return ops.sigmoid(draws.log_gamma(self.concentration1, shape) - draws.log_gamma(self.concentration0, shape))

    def _log_density(self, x: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return ops.xlogy(a - 1, x) + ops.xlogy(b - 1, 1 - x) - draws.log_beta(a, b)

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        away = (a - 1) * ops.digamma(a) + (b - 1) * ops.digamma(b)
        return draws.log_beta(a, b) - away + (a + b - 2) * ops.digamma(a + b)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return self.concentration1, self.concentration0

    @property
    def _mean_carrier_measure(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return 2 * ops.digamma(a + b) - ops.digamma(a) - ops.digamma(b)  # of -log x - log(1 - x)

    def _log_normalizer(self, x: Any, y: Any) -> Tensor:
        return draws.log_beta(x, y)


class Dirichlet(ExponentialFamily):
    """Vectors of K numbers from 0 whose sum is 1, of `concentration` [.., K] above 0.

    Samples are differentiable in the concentration, as ratios of Gamma draws.
    """

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    has_rsample = True
    support = constraints.simplex

    def __init__(self, concentration: Tensor, validate_args: bool | None = None):
        if concentration.ndim < 1:
            raise ArgumentError("Dirichlet", "an axis of components", "a number")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args)

    _interior = property(lambda self: 1 / self.event_shape[0])
    total = property(lambda self: self.concentration.sum(-1, keepdim=True))
    mean = property(lambda self: self.concentration / self.total)
    mode = property(lambda self: _mode(self.concentration))

    @property
    def variance(self) -> Tensor:
        a, total = self.concentration, self.total
        return a * (total - a) / (total.square() * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return ops.softmax(draws.log_gamma(self.concentration, self._extended_shape(sample_shape)), -1)

    def _log_density(self, x: Tensor) -> Tensor:
        return ops.xlogy(self.concentration - 1, x).sum(-1) - self._log_normalizer(self.concentration)

    def entropy(self) -> Tensor:
        a, k = self.concentration, self.event_shape[0]
        total = a.sum(-1)
        away = ((a - 1) * ops.digamma(a)).sum(-1)
        return self._log_normalizer(a) + (total - k) * ops.digamma(total) - away

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration,)

    @property
    def _mean_carrier_measure(self) -> Tensor:
        a = self.concentration
        return (ops.digamma(a.sum(-1, keepdim=True)) - ops.digamma(a)).sum(-1)  # of the sum of -log x

    def _log_normalizer(self, x: Any) -> Tensor:
        return x.lgamma().sum(-1) - x.sum(-1).lgamma()


def _mode(concentration: Tensor) -> Tensor:
    # In a corner, that of the largest concentration, where all of them are below 1.
    above = (concentration - 1).clamp(min=0)
    total = above.sum(-1, keepdim=True)
    corner = ops.one_hot(concentration.argmax(-1), concentration.shape[-1]).to(concentration.dtype)
    return ops.where((concentration < 1).all(-1, keepdim=True), corner, above / ops.where(total > 0, total, math.nan))


class Kumaraswamy(TransformedDistribution):
    """Density a b x^(a - 1) (1 - x^a)^(b - 1) over [0, 1], a = `concentration1`, b = `concentration0`."""

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    _interior = 0.5

    def __init__(
        self, concentration1: Tensor | float, concentration0: Tensor | float, validate_args: bool | None = None
    ):
        self.concentration1, self.concentration0 = parameters(concentration1, concentration0)
        base = Uniform(ops.zeros_like(self.concentration0), ops.ones_like(self.concentration0), validate_args=False)
        chain = [
            transforms.PowerTransform(1 / self.concentration0),
            transforms.AffineTransform(1.0, -1.0),
            transforms.PowerTransform(1 / self.concentration1),
        ]
        super().__init__(base, chain, validate_args)

    def _log_density(self, x: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return a.log() + b.log() + ops.xlogy(a - 1, x) + ops.xlogy(b - 1, 1 - x**a)

    def cdf(self, value: Tensor) -> Tensor:
        return 1 - (1 - value.clamp(0, 1) ** self.concentration1) ** self.concentration0

    def _moment(self, n: int) -> Tensor:
        log_beta = draws.log_beta(1 + n / self.concentration1, self.concentration0)
        return self.concentration0 * log_beta.exp()

    mean = property(lambda self: self._moment(1))
    variance = property(lambda self: self._moment(2) - self._moment(1).square())

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        inner = ((a - 1).clamp(min=0) / (a * b - 1).clamp(min=1e-30)) ** a.reciprocal()
        return ops.where((a < 1) | (b < 1), math.nan, inner)

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = ops.digamma(b + 1) + draws.EULER
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()


@register_kl(Beta, Beta)
def _betas(p: Beta, q: Beta) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    away = (a - c) * ops.digamma(a) + (b - d) * ops.digamma(b) - (a + b - c - d) * ops.digamma(a + b)
    return draws.log_beta(c, d) - draws.log_beta(a, b) + away


@register_kl(Dirichlet, Dirichlet)
def _dirichlets(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    away = ((a - b) * (ops.digamma(a) - ops.digamma(a.sum(-1, keepdim=True)))).sum(-1)
    return q._log_normalizer(b) - p._log_normalizer(a) + away

"""Distributions of counts: Poisson, geometric, binomial, negative binomial, multinomial. Samples are floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.errors import ArgumentError, StateError, UndefinedError
from ..core.tensor import Tensor
from . import constraints, draws
from .discrete import OfCategorical, WithLogits, enumerated, given_one
from .distribution import Distribution, ExponentialFamily, parameters
from .kl import register_kl

__all__ = ["Binomial", "Geometric", "Multinomial", "NegativeBinomial", "Poisson"]


class Poisson(ExponentialFamily):
    """The number of events where `rate` are expected: rate^k exp(-rate) / k!."""

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer
    _interior = 0.0

    def __init__(self, rate: Tensor | float, validate_args: bool | None = None):
        (self.rate,) = parameters(rate)
        super().__init__(self.rate.shape, (), validate_args)

    mean = property(lambda self: self.rate)
    mode = property(lambda self: self.rate.floor())
    variance = property(lambda self: self.rate)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return ops.poisson(self.rate.detach().expand(self._extended_shape(sample_shape)))

    def _log_density(self, value: Tensor) -> Tensor:
        return ops.xlogy(value, self.rate) - self.rate - (value + 1).lgamma()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.rate.log(),)

    def _log_normalizer(self, x: Any) -> Tensor:
        return x.exp()

    def entropy(self) -> Tensor:
        """Not there: it has no closed form."""
        raise self._lacks("entropy")


class Geometric(WithLogits):
    """The failures before the first success of probability `probs`: (1 - p)^k p, k from 0."""

    support = constraints.nonnegative_integer
    _interior = 0.0

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if "probs" in self.__dict__:
            self._need("probs", self.probs > 0, "above 0")

    mean = property(lambda self: 1 / self.probs - 1)
    mode = property(lambda self: ops.zeros_like(self.probs))
    variance = property(lambda self: (1 / self.probs - 1) / self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return draws.from_host(lambda g, p: g.geometric(np.broadcast_to(p, shape)) - 1, self.probs.detach())

    def _log_density(self, value: Tensor) -> Tensor:
        return ops.xlogy(value, 1 - self.probs) + self.probs.log()

    def entropy(self) -> Tensor:
        return (ops.softplus(self.logits) - self.probs * self.logits) / self.probs


class Binomial(WithLogits):
    """The successes of probability `probs` in `total_count` trials."""

    arg_constraints = {"total_count": constraints.nonnegative_integer, **WithLogits.arg_constraints}
    has_enumerate_support = True
    _interior = 0.0

    def __init__(
        self,
        total_count: Tensor | float = 1,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        name, given = given_one("Binomial", probs, logits)
        given, count = parameters(given, total_count)
        self.total_count = count.to(given.dtype)
        self.__dict__[name] = given
        Distribution.__init__(self, given.shape, (), validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self.total_count)

    mean = property(lambda self: self.total_count * self.probs)
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))

    @property
    def mode(self) -> Tensor:
        return ops.minimum(((self.total_count + 1) * self.probs).floor(), self.total_count)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return ops.binomial(self.total_count.expand(shape), self.probs.detach().expand(shape))

    def _log_density(self, value: Tensor) -> Tensor:
        n, k = self.total_count, value
        ways = (n + 1).lgamma() - (k + 1).lgamma() - (n - k + 1).lgamma()
        return ways + k * self.logits - n * ops.softplus(self.logits)

    def _one_count(self) -> int:
        most = int(self.total_count.max().item())
        if not bool((self.total_count == most).all()):
            raise UndefinedError("Binomial", "one total_count for the whole batch", "several")
        return most

    def entropy(self) -> Tensor:
        """The entropy in nats, a sum over 0 to total_count, which must be one for the batch."""
        logs = self.log_prob(self.enumerate_support(False))
        return -(logs.exp() * logs).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """0 to total_count: [total_count + 1, *batch_shape]."""
        values = ops.arange(self._one_count() + 1, dtype=self.total_count.dtype, device=self.total_count.device)
        return enumerated(values, self.batch_shape, expand)


class NegativeBinomial(WithLogits):
    """The successes of probability `probs` before `total_count` failures, which need not be whole."""

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer
    _interior = 0.0

    def __init__(
        self,
        total_count: Tensor | float,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        name, given = given_one("NegativeBinomial", probs, logits)
        given, count = parameters(given, total_count)
        self.total_count = count.to(given.dtype)
        self.__dict__[name] = given
        Distribution.__init__(self, given.shape, (), validate_args)

    mean = property(lambda self: self.total_count * self.logits.exp())
    variance = property(lambda self: self.mean / ops.sigmoid(-self.logits))
    mode = property(lambda self: ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)

        def draw(g: np.random.Generator, count: np.ndarray, odds: np.ndarray) -> np.ndarray:
            return g.poisson(g.standard_gamma(np.broadcast_to(count, shape)) * odds)

        return draws.from_host(draw, self.total_count, self.logits.detach().exp())

    def _log_density(self, value: Tensor) -> Tensor:
        n, k = self.total_count, value
        none = (n == 0) & (k == 0)
        one = ops.where(none, 1.0, n)
        ways = (one + k).lgamma() - (k + 1).lgamma() - one.lgamma()
        return ops.where(none, 0.0, ways) + n * ops.logsigmoid(-self.logits) + k * ops.logsigmoid(self.logits)


class Multinomial(OfCategorical):
    """The counts [*batch_shape, K] of K outcomes in `total_count` trials, an int, of probabilities `probs` [.., K]."""

    def __init__(
        self,
        total_count: int = 1,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ):
        if total_count < 0:
            raise ArgumentError("Multinomial", "total_count from 0", str(total_count))
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        return constraints.multinomial(self.total_count)

    mean = property(lambda self: self.probs * self.total_count)
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape, n = self._extended_shape(sample_shape), self.total_count

        def draw(g: np.random.Generator, p: np.ndarray) -> np.ndarray:
            return g.multinomial(n, np.broadcast_to(p / p.sum(-1, keepdims=True), shape))

        return draws.from_host(draw, self.probs.detach())

    def log_prob(self, value: Tensor) -> Tensor:
        self._need_event(value)
        ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        impossible = (value == 0) & (self.probs == 0)
        return ways + (value * ops.where(impossible, 0.0, self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        """The entropy in nats, by the binomial distribution of each count."""
        n, p = self.total_count, self.probs
        counts = ops.arange(1, n + 1, dtype=p.dtype, device=p.device).reshape(-1, *(1,) * p.ndim)
        logs = Binomial(n, probs=p, validate_args=False).log_prob(counts)
        ways = (logs.exp() * (counts + 1).lgamma()).sum((0, -1))
        return n * self._categorical.entropy() - math.lgamma(n + 1) + ways

    def __repr__(self) -> str:
        return f"Multinomial({self.total_count}, {self._categorical!r})"


@register_kl(Poisson, Poisson)
def _poissons(p: Poisson, q: Poisson) -> Tensor:
    return ops.xlogy(p.rate, p.rate / q.rate) - (p.rate - q.rate)


@register_kl(Geometric, Geometric)
def _geometrics(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - ops.log1p(-q.probs) / p.probs - q.logits


@register_kl(Binomial, Binomial)
def _binomials(p: Binomial, q: Binomial) -> Tensor:
    ones = p.probs * (ops.softplus(-q.logits) - ops.softplus(-p.logits))
    found = p.total_count * (ones + (1 - p.probs) * (ops.softplus(q.logits) - ops.softplus(p.logits)))
    if bool((p.total_count < q.total_count).any()):  # the support is the same, but not the number of ways
        raise StateError("kl_divergence", "Binomials with p's total_count at least q's", "a smaller one")
    return ops.where(p.total_count > q.total_count, math.inf, found)

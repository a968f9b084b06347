"""Differentiable relaxations of Bernoulli and OneHotCategorical: Concrete distributions, by a temperature.

Maddison, Mnih and Teh 2017, arXiv:1611.00712; Jang, Gu and Poole 2017, arXiv:1611.01144.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..core.tensor import Tensor
from . import constraints, draws, transforms
from .discrete import OfCategorical, WithLogits, within
from .transformed import TransformedDistribution

__all__ = ["ExpRelaxedCategorical", "LogitRelaxedBernoulli", "RelaxedBernoulli", "RelaxedOneHotCategorical"]


def _log(temperature: Any) -> Any:
    return temperature.log() if isinstance(temperature, Tensor) else math.log(temperature)


class LogitRelaxedBernoulli(WithLogits):
    """(logits + a logistic number) / temperature, the logit of a relaxed Bernoulli number."""

    has_rsample = True
    support = constraints.real

    def __init__(
        self,
        temperature: Tensor | float,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = within(draws.uniform(self._extended_shape(sample_shape), self.logits))
        return (u.log() - ops.log1p(-u) + self.logits) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        away = self.logits - value * self.temperature
        return _log(self.temperature) + away - 2 * ops.softplus(away)


class RelaxedBernoulli(TransformedDistribution):
    """Numbers between 0 and 1 that near 0 or 1 as `temperature` nears 0, 1 with probability `probs`."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    _interior = 0.5

    def __init__(
        self,
        temperature: Tensor | float,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        base = LogitRelaxedBernoulli(temperature, probs, logits, validate_args)
        super().__init__(base, transforms.SigmoidTransform(), validate_args=False)

    temperature = property(lambda self: self.base_dist.temperature)
    probs = property(lambda self: self.base_dist.probs)
    logits = property(lambda self: self.base_dist.logits)


class ExpRelaxedCategorical(OfCategorical):
    """The logarithm of a relaxed one-hot vector [*batch_shape, K]: log_softmax((logits + Gumbel) / temperature)."""

    has_rsample = True
    support = constraints.real_vector

    def __init__(
        self,
        temperature: Tensor | float,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u = within(draws.uniform(self._extended_shape(sample_shape), self.logits))
        return ops.log_softmax((self.logits - (-u.log()).log()) / self.temperature, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        k = self.event_shape[0]
        score = ops.log_softmax(self.logits - value * self.temperature, -1).sum(-1)
        return score + math.lgamma(k) + (k - 1) * _log(self.temperature)


class RelaxedOneHotCategorical(TransformedDistribution):
    """Vectors of sum 1 [*batch_shape, K] that near one-hot ones, of `probs`, as `temperature` nears 0."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex

    def __init__(
        self,
        temperature: Tensor | float,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args)
        super().__init__(base, transforms.ExpTransform(), validate_args=False)

    temperature = property(lambda self: self.base_dist.temperature)
    probs = property(lambda self: self.base_dist.probs)
    logits = property(lambda self: self.base_dist.logits)

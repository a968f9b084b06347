"""MixtureSameFamily: a mixture of distributions of one family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from .. import ops
from ..base.errors import ArgumentError
from ..core.tensor import Tensor
from . import constraints
from .discrete import Categorical
from .distribution import Distribution

__all__ = ["MixtureSameFamily"]


class MixtureSameFamily(Distribution):
    """With probabilities of a Categorical [*batch_shape] of K, a component of a batch [*batch_shape, K]."""

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ):
        if not isinstance(mixture_distribution, Categorical):
            kind = type(mixture_distribution).__name__
            raise ArgumentError("MixtureSameFamily", "a Categorical as mixture_distribution", kind)
        batch = tuple(component_distribution.batch_shape)
        k = mixture_distribution.param_shape[-1]
        mixed = tuple(mixture_distribution.batch_shape)
        if not batch or batch[-1] != k or (mixed and mixed != batch[:-1]):
            needs = f"components [{', '.join(map(str, (*mixed, k)))}]"
            raise ArgumentError("MixtureSameFamily", needs, str(batch))
        self._mixture_distribution, self._component_distribution = mixture_distribution, component_distribution
        super().__init__(batch[:-1], component_distribution.event_shape, validate_args)

    mixture_distribution = property(lambda self: self._mixture_distribution)
    component_distribution = property(lambda self: self._component_distribution)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    def _weights(self) -> Tensor:
        # [.., K, 1...], an axis for each of an event
        p = self._mixture_distribution.probs
        return p.reshape(*p.shape, *(1,) * len(self._event_shape))

    def _axis(self) -> int:
        return -1 - len(self._event_shape)

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self._component_distribution.mean).sum(self._axis())

    @property
    def variance(self) -> Tensor:
        away = self._component_distribution.mean - self.mean.unsqueeze(self._axis())
        return (self._weights() * (self._component_distribution.variance + away.square())).sum(self._axis())

    def cdf(self, value: Tensor) -> Tensor:
        found = self._component_distribution.cdf(value.unsqueeze(self._axis()))
        return (found * self._mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        logs = self._component_distribution.log_prob(value.unsqueeze(self._axis()))
        return ops.logsumexp(logs + self._mixture_distribution.logits, -1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        axis = self._axis()
        chosen = self._mixture_distribution.expand(tuple(self.batch_shape)).sample(sample_shape)
        drawn = self._component_distribution.sample(sample_shape)
        index = chosen.reshape(*chosen.shape, *(1,) * (1 + len(self._event_shape)))
        return drawn.gather(axis, index.expand((*chosen.shape, 1, *self._event_shape))).squeeze(axis)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        new = self._filled(batch_shape, _instance)
        k = self._component_distribution.batch_shape[-1]
        new._component_distribution = self._component_distribution.expand((*batch_shape, k))
        new._mixture_distribution = self._mixture_distribution.expand(tuple(batch_shape))
        return new

    def __repr__(self) -> str:
        return f"MixtureSameFamily({self._mixture_distribution!r}, {self._component_distribution!r})"

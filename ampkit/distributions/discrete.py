"""Distributions over two or more outcomes, given by probabilities or by logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

from .. import ops
from ..base import dtypes
from ..base.errors import ArgumentError
from ..core.tensor import Tensor
from . import constraints
from .distribution import Distribution, parameters, register_kl

__all__ = ["Bernoulli", "Categorical", "OneHotCategorical"]


def _given(where: str, probs: Any, logits: Any) -> Tensor:
    if (probs is None) == (logits is None):
        raise ArgumentError(where, "probs or logits", "neither" if probs is None else "both")
    return parameters(logits if probs is None else probs)[0]


def _within(probs: Tensor) -> Tensor:
    # Away from 0 and 1 by the spacing of the dtype, so that logarithms are finite.
    eps = dtypes.finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


class Bernoulli(Distribution):
    """1 with probability `probs` = sigmoid(`logits`), else 0; samples have the parameters' dtype."""

    support = constraints.boolean

    def __init__(
        self,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        given = _given("Bernoulli", probs, logits)
        super().__init__(given.shape, (), validate_args)
        if logits is None:
            self._need("probs", (given >= 0) & (given <= 1), "from 0 to 1")
        self.__dict__["probs" if logits is None else "logits"] = given
        self.names = ("probs",) if logits is None else ("logits",)

    @cached_property
    def probs(self) -> Tensor:
        """The probability of 1."""
        return ops.sigmoid(self.logits)

    @cached_property
    def logits(self) -> Tensor:
        """log(probs / (1 - probs))."""
        p = _within(self.probs)
        return p.log() - ops.log1p(-p)

    mean = property(lambda self: self.probs)
    variance = property(lambda self: self.probs * (1 - self.probs))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return ops.bernoulli(self.probs.detach().expand(self._shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        return value * self.logits - ops.softplus(self.logits)

    def entropy(self) -> Tensor:
        return ops.softplus(self.logits) - self.probs * self.logits

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """0 and 1: [2, *batch_shape]."""
        values = ops.arange(2, dtype=self.probs.dtype, device=self.probs.device).reshape(
            2, *(1,) * len(self.batch_shape)
        )
        return values.expand((2, *self.batch_shape)) if expand else values


class Categorical(Distribution):
    """One of K outcomes, 0 to K - 1, with probabilities `probs` [*batch_shape, K], or softmax(`logits`).

    probs are divided by their sum; logits have their logsumexp subtracted. Samples are int64.
    """

    support = property(lambda self: constraints.integer_interval(0, self.probs.shape[-1] - 1))

    def __init__(
        self,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        given = _given("Categorical", probs, logits)
        if given.ndim < 1:
            raise ArgumentError("Categorical", "an axis of outcomes", "a number")
        super().__init__(given.shape[:-1], (), validate_args)
        if logits is None:
            self._need("probs", given >= 0, "from 0")
            self.__dict__["probs"] = given / given.sum(-1, keepdim=True)
        else:
            self.__dict__["logits"] = ops.log_softmax(given, -1)
        self.names = ("probs",) if logits is None else ("logits",)

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities [*batch_shape, K]."""
        return self.logits.exp()

    @cached_property
    def logits(self) -> Tensor:
        """Their logarithms; finite where a probability is 0."""
        return _within(self.probs).log()

    @property
    def mode(self) -> Tensor:
        """The likeliest outcome."""
        return self.probs.argmax(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        rows = self.probs.detach().reshape(-1, self.probs.shape[-1])
        drawn = ops.multinomial(rows, math.prod(sample_shape), replacement=True)
        return drawn.T.reshape(self._shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        index = value.long()
        shape = ops.broadcast_shapes(tuple(index.shape), tuple(self.batch_shape))
        logits = self.logits.expand((*shape, self.logits.shape[-1]))
        return logits.gather(-1, index.expand(shape).unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.probs * self.logits.clamp(min=dtypes.finfo(self.logits.dtype).min)).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """0 to K - 1: [K, *batch_shape]."""
        k = self.probs.shape[-1]
        values = ops.arange(k, device=self.probs.device).reshape(k, *(1,) * len(self.batch_shape))
        return values.expand((k, *self.batch_shape)) if expand else values

    def expand(self, batch_shape: Sequence[int]) -> Self:
        (name,) = self.names
        held = getattr(self, name)
        return type(self)(**{name: held.expand((*batch_shape, held.shape[-1]))}, validate_args=False)


class OneHotCategorical(Distribution):
    """Categorical, whose values are one-hot vectors [*batch_shape, K] of the parameters' dtype."""

    support = constraints.one_hot

    def __init__(
        self,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        self.base_dist = Categorical(probs, logits, validate_args)
        super().__init__(self.base_dist.batch_shape, self.base_dist.probs.shape[-1:], validate_args)

    probs = property(lambda self: self.base_dist.probs)
    logits = property(lambda self: self.base_dist.logits)
    mean = property(lambda self: self.probs)
    variance = property(lambda self: self.probs * (1 - self.probs))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return ops.one_hot(self.base_dist.sample(sample_shape), self.event_shape[0]).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.base_dist.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        return self.base_dist.entropy()


@register_kl(Bernoulli, Bernoulli)
def _bernoullis(p: Bernoulli, q: Bernoulli) -> Tensor:
    ones = p.probs * (ops.softplus(-q.logits) - ops.softplus(-p.logits))
    return ones + (1 - p.probs) * (ops.softplus(q.logits) - ops.softplus(p.logits))


@register_kl(Categorical, Categorical)
def _categoricals(p: Categorical, q: Categorical) -> Tensor:
    terms = ops.where(q.probs == 0, math.inf, p.probs * (p.logits - q.logits))
    return ops.where(p.probs == 0, 0.0, terms).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hots(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categoricals(p.base_dist, q.base_dist)

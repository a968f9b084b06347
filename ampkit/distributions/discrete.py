"""Distributions of outcomes: Bernoulli, Categorical, and its one-hot vectors; by probabilities or logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..base import dtypes
from ..base.errors import ArgumentError
from ..core.autograd.grad_mode import no_grad
from ..core.tensor import Tensor
from ..core.tensor_base import Shape
from . import constraints
from .distribution import Distribution, ExponentialFamily, lazy_property, parameters
from .kl import register_kl

__all__ = ["Bernoulli", "Categorical", "OneHotCategorical", "OneHotCategoricalStraightThrough"]


def given_one(where: str, probs: Any, logits: Any) -> tuple[str, Tensor]:
    """("probs" or "logits", its tensor), the one that is given."""
    if (probs is None) == (logits is None):
        raise ArgumentError(where, "probs or logits", "neither" if probs is None else "both")
    return ("probs", parameters(probs)[0]) if logits is None else ("logits", parameters(logits)[0])


def within(probs: Tensor) -> Tensor:
    """Away from 0 and 1 by the spacing of the dtype, so that logarithms are finite."""
    eps = dtypes.finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


class WithLogits(Distribution):
    """The probability of an event by `probs` or `logits`, each computed from the other; shape batch_shape."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(
        self,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        name, given = given_one(type(self).__name__, probs, logits)
        self.__dict__[name] = given
        super().__init__(given.shape, (), validate_args)

    @lazy_property
    def probs(self) -> Tensor:
        """The probability of 1."""
        return ops.sigmoid(self.logits)

    @lazy_property
    def logits(self) -> Tensor:
        """log(probs / (1 - probs))."""
        p = within(self.probs)
        return p.log() - ops.log1p(-p)

    @property
    def param_shape(self) -> Shape:
        """The shape of the parameter."""
        return Shape(given_of(self).shape)


def given_of(of: Any) -> Tensor:
    """`probs` or `logits` of a distribution, without computing one from the other."""
    given: Tensor | None = of.__dict__.get("probs")
    return of.logits if given is None else given


class Bernoulli(WithLogits, ExponentialFamily):
    """1 with probability `probs` = sigmoid(`logits`), else 0; samples have the parameters' dtype."""

    support = constraints.boolean
    has_enumerate_support = True

    mean = property(lambda self: self.probs)
    variance = property(lambda self: self.probs * (1 - self.probs))

    @property
    def mode(self) -> Tensor:
        return ops.where(self.probs == 0.5, math.nan, (self.probs >= 0.5).to(self.probs.dtype))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return ops.bernoulli(self.probs.detach().expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        return value * self.logits - ops.softplus(self.logits)

    def entropy(self) -> Tensor:
        return ops.softplus(self.logits) - self.probs * self.logits

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """0 and 1: [2, *batch_shape]."""
        given = given_of(self)
        return enumerated(ops.arange(2, dtype=given.dtype, device=given.device), self.batch_shape, expand)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.logits,)

    def _log_normalizer(self, x: Any) -> Tensor:
        return ops.softplus(x)


def enumerated(values: Tensor, batch_shape: Sequence[int], expand: bool) -> Tensor:
    """values [K] as [K, *batch_shape], or [K, 1...] without `expand`."""
    found = values.reshape(-1, *(1,) * len(batch_shape))
    return found.expand((-1, *batch_shape)) if expand else found


class Categorical(Distribution):
    """One of K outcomes, 0 to K - 1, with probabilities `probs` [*batch_shape, K], or softmax(`logits`).

    probs are divided by their sum; logits have their logsumexp subtracted. Samples are int64.
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(
        self,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        name, given = given_one("Categorical", probs, logits)
        if given.ndim < 1:
            raise ArgumentError("Categorical", "an axis of outcomes", "a number")
        if name == "probs":
            if self._validate_args if validate_args is None else validate_args:
                self._need("probs", given >= 0, "from 0")
            given = given / given.sum(-1, keepdim=True)
        else:
            given = ops.log_softmax(given, -1)
        self.__dict__[name] = given
        super().__init__(given.shape[:-1], (), validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self._num_events - 1)

    @lazy_property
    def probs(self) -> Tensor:
        """The probabilities [*batch_shape, K]."""
        return self.logits.exp()

    @lazy_property
    def logits(self) -> Tensor:
        """Their logarithms; finite where a probability is 0."""
        return within(self.probs).log()

    @property
    def param_shape(self) -> Shape:
        """The shape of the parameter, [*batch_shape, K]."""
        return Shape(given_of(self).shape)

    _num_events = property(lambda self: self.param_shape[-1])
    mean = property(lambda self: ops.full(tuple(self.batch_shape), math.nan, dtype=self.probs.dtype))
    variance = property(lambda self: ops.full(tuple(self.batch_shape), math.nan, dtype=self.probs.dtype))

    @property
    def mode(self) -> Tensor:
        """The likeliest outcome."""
        return self.probs.argmax(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        if not math.prod(shape):
            return ops.zeros(tuple(shape), dtype="int64", device=self.probs.device)
        rows = self.probs.detach().reshape(-1, self._num_events)
        drawn = ops.multinomial(rows, math.prod(sample_shape), replacement=True)
        return drawn.T.reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        index = value.long()
        shape = ops.broadcast_shapes(tuple(index.shape), tuple(self.batch_shape))
        logits = self.logits.expand((*shape, self._num_events))
        return logits.gather(-1, index.expand(shape).unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.probs * self.logits.clamp(min=dtypes.finfo(self.logits.dtype).min)).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """0 to K - 1: [K, *batch_shape]."""
        return enumerated(ops.arange(self._num_events, device=given_of(self).device), self.batch_shape, expand)


class OfCategorical(Distribution):
    """Values of event_shape [K], by the parameters of a Categorical of K outcomes."""

    arg_constraints = Categorical.arg_constraints

    def __init__(
        self,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ):
        self._categorical = Categorical(probs, logits, validate_args)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args=False)

    param_shape = property(lambda self: self._categorical.param_shape)
    probs = property(lambda self: self._categorical.probs)
    logits = property(lambda self: self._categorical.logits)


class OneHotCategorical(OfCategorical):
    """Categorical, whose values are one-hot vectors [*batch_shape, K] of the parameters' dtype."""

    support = constraints.one_hot
    has_enumerate_support = True

    base_dist = property(lambda self: self._categorical)
    mean = property(lambda self: self.probs)
    mode = property(lambda self: self._one_hot(self.probs.argmax(-1)))
    variance = property(lambda self: self.probs * (1 - self.probs))

    def _one_hot(self, index: Tensor) -> Tensor:
        return ops.one_hot(index, self.event_shape[0]).to(given_of(self._categorical).dtype)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._one_hot(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._need_event(value)
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """The unit vectors: [K, *batch_shape, K]."""
        found = self._one_hot(ops.arange(self.event_shape[0], device=given_of(self._categorical).device))
        found = found.reshape(-1, *(1,) * len(self.batch_shape), self.event_shape[0])
        return found.expand((-1, *self.batch_shape, self.event_shape[0])) if expand else found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._categorical!r})"


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """OneHotCategorical whose rsample passes the gradient of a sample on to `probs`.

    Bengio, Leonard and Courville 2013, arXiv:1308.3432.
    """

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return super().sample(sample_shape)


@register_kl(Bernoulli, Bernoulli)
def _bernoullis(p: Bernoulli, q: Bernoulli) -> Tensor:
    ones = p.probs * (ops.softplus(-q.logits) - ops.softplus(-p.logits))
    ones = ops.where(p.probs == 0, 0.0, ops.where(q.probs == 0, math.inf, ones))
    none = (1 - p.probs) * (ops.softplus(q.logits) - ops.softplus(p.logits))
    return ones + ops.where(p.probs == 1, 0.0, ops.where(q.probs == 1, math.inf, none))


@register_kl(Categorical, Categorical)
def _categoricals(p: Categorical, q: Categorical) -> Tensor:
    terms = ops.where(q.probs == 0, math.inf, p.probs * (p.logits - q.logits))
    return ops.where(p.probs == 0, 0.0, terms).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hots(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categoricals(p.base_dist, q.base_dist)

"""Divergences between distributions of different families: KL(p || q) = E_p[log p] - E_p[log q].

E_p[log p] is minus the entropy. Where q's logarithm is a polynomial, a logarithm or an exponential of the value, its
mean follows from p's moments. Infinite where p has values that q has not.
"""

from __future__ import annotations

import math

from .. import ops
from ..core.tensor import Tensor
from . import draws
from .beta import Beta
from .continuous import Exponential, Laplace, Normal, Uniform
from .continuous_bernoulli import ContinuousBernoulli
from .counts import Binomial, Poisson
from .discrete import Bernoulli
from .distribution import LOG_2PI, Distribution
from .draws import EULER
from .extreme_value import Gumbel, Pareto
from .gamma import Gamma
from .kl import register_kl


def _infinite(p: Distribution, q: Distribution) -> Tensor:
    at = p.mean + q.mean
    return ops.full(tuple(at.shape), math.inf, dtype=at.dtype, device=at.device)


_p: type[Distribution]
_q: type[Distribution]
_UNIT, _POSITIVE, _REAL = (Beta, ContinuousBernoulli), (Exponential, Gamma), (Gumbel, Laplace, Normal)
for _p in (*_POSITIVE, *_REAL, Pareto):
    for _q in _UNIT:
        register_kl(_p, _q)(_infinite)
    register_kl(_p, Uniform)(_infinite)
for _p in _REAL:
    for _q in (*_POSITIVE, Pareto):
        register_kl(_p, _q)(_infinite)
for _p in (*_UNIT, *_POSITIVE):
    register_kl(_p, Pareto)(_infinite)
register_kl(Poisson, Bernoulli)(_infinite)
register_kl(Poisson, Binomial)(_infinite)


# E_p[log q(x)] by q: with p's mean and variance, mean logarithm, or mean of exp(-x / scale).


def _in_exponential(p: Distribution, q: Exponential) -> Tensor:
    return q.rate.log() - q.rate * p.mean


def _in_normal(p: Distribution, q: Normal) -> Tensor:
    square = p.variance + (p.mean - q.loc).square()
    return -0.5 * (LOG_2PI + square / q.scale.square()) - q.scale.log()


def _in_gamma(p: Distribution, q: Gamma, mean_log: Tensor) -> Tensor:
    a = q.concentration
    return a * q.rate.log() - a.lgamma() + (a - 1) * mean_log - q.rate * p.mean


def _in_gumbel(p: Distribution, q: Gumbel, mean_exp: Tensor) -> Tensor:
    # mean_exp: of exp(-x / scale)
    return (q.loc - p.mean) / q.scale - (q.loc / q.scale).exp() * mean_exp - q.scale.log()


def _minus_entropy(p: Distribution, mean_log: Tensor) -> Tensor:
    return -p.entropy() - mean_log


for _p in (*_UNIT, Exponential, Gamma, Gumbel, Laplace, Pareto, Uniform):
    register_kl(_p, Normal)(lambda p, q: _minus_entropy(p, _in_normal(p, q)))
for _p in (*_UNIT, Gamma, Pareto):  # infinite where a Pareto has no mean
    register_kl(_p, Exponential)(lambda p, q: _minus_entropy(p, _in_exponential(p, q)))
for (_p, _q), _formula in {
    (Bernoulli, Poisson): lambda p, q: -p.entropy() - (p.probs * q.rate.log() - q.rate),
    (Beta, ContinuousBernoulli): lambda p, q: (
        -p.entropy() - p.mean * q.logits + ops.softplus(q.logits) - q._log_constant()
    ),
    (Exponential, Gamma): lambda p, q: _minus_entropy(p, _in_gamma(p, q, -EULER - p.rate.log())),
    (Exponential, Gumbel): lambda p, q: _minus_entropy(p, _in_gumbel(p, q, p.rate / (p.rate + 1 / q.scale))),
    (Pareto, Gamma): lambda p, q: _minus_entropy(p, _in_gamma(p, q, p.scale.log() + 1 / p.alpha)),
    (Uniform, Exponential): lambda p, q: ops.where(p.low < 0, math.inf, _minus_entropy(p, _in_exponential(p, q))),
}.items():
    register_kl(_p, _q)(_formula)


@register_kl(Beta, Gamma)
def _beta_gamma(p: Beta, q: Gamma) -> Tensor:
    mean_log = ops.digamma(p.concentration1) - ops.digamma(p.concentration1 + p.concentration0)
    return _minus_entropy(p, _in_gamma(p, q, mean_log))


def _in_uniform(p: Distribution, q: Uniform) -> Tensor:
    inside = (q.low <= 0) & (q.high >= 1)
    return ops.where(inside, -p.entropy() + (q.high - q.low).log(), math.inf)


register_kl(Beta, Uniform)(_in_uniform)
register_kl(ContinuousBernoulli, Uniform)(_in_uniform)


@register_kl(Gamma, Gumbel)
def _gamma_gumbel(p: Gamma, q: Gumbel) -> Tensor:
    mean_exp = (1 + 1 / (p.rate * q.scale)) ** -p.concentration
    return _minus_entropy(p, _in_gumbel(p, q, mean_exp))


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    mean_exp = (-p.loc / q.scale + 0.5 * (p.scale / q.scale).square()).exp()
    return _minus_entropy(p, _in_gumbel(p, q, mean_exp))


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    away = p.loc - q.loc
    z = away / p.scale
    mean_abs = p.scale * math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp() + away * ops.erf(z * math.sqrt(0.5))
    return -p.entropy() + (2 * q.scale).log() + mean_abs / q.scale


def _range(p: Uniform) -> Tensor:
    return p.high - p.low


@register_kl(Uniform, Beta)
def _uniform_beta(p: Uniform, q: Beta) -> Tensor:
    a, b = q.concentration1, q.concentration0
    inside = (p.low >= 0) & (p.high <= 1)
    logs = (a - 1) * _mean_log(p.low, p.high) + (b - 1) * _mean_log(1 - p.high, 1 - p.low)
    return ops.where(inside, -p.entropy() - logs + draws.log_beta(a, b), math.inf)


def _mean_log(low: Tensor, high: Tensor) -> Tensor:
    # Of a uniform number.
    return (ops.xlogy(high, high) - ops.xlogy(low, low)) / (high - low) - 1


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_continuous_bernoulli(p: Uniform, q: ContinuousBernoulli) -> Tensor:
    inside = (p.low >= 0) & (p.high <= 1)
    logs = p.mean * q.logits - ops.softplus(q.logits) + q._log_constant()
    return ops.where(inside, -p.entropy() - logs, math.inf)


@register_kl(Uniform, Gamma)
def _uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    low = p.low.clamp(min=0)
    return ops.where(p.low < 0, math.inf, _minus_entropy(p, _in_gamma(p, q, _mean_log(low, p.high))))


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    mean_exp = q.scale / _range(p) * ((-p.low / q.scale).exp() - (-p.high / q.scale).exp())
    return _minus_entropy(p, _in_gumbel(p, q, mean_exp))


@register_kl(Uniform, Pareto)
def _uniform_pareto(p: Uniform, q: Pareto) -> Tensor:
    low = ops.where(p.low < q.scale, q.scale, p.low)
    logs = q.alpha.log() + q.alpha * q.scale.log() - (q.alpha + 1) * _mean_log(low, p.high)
    return ops.where(p.low < q.scale, math.inf, -p.entropy() - logs)

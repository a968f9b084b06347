"""kl_divergence and the registry of its formulas; those of pairs of one family stand beside the family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.errors import StateError, UndefinedError
from ..core.tensor import Tensor
from ..ops.argument_checks import checked
from .distribution import Distribution, ExponentialFamily, Independent, bregman, sum_rightmost

__all__ = ["kl_divergence", "register_kl"]

Formula = Callable[[Any, Any], Tensor]

_divergences: dict[tuple[type, type], Formula] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """Decorate the function that computes KL(p || q) for two classes and their subclasses."""

    def register(function: Formula) -> Formula:
        _divergences[type_p, type_q] = function
        return function

    return register


@checked
def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence KL(p || q), the mean of log p - log q under p. -> [*batch_shape].

    Raises StateError for a pair that nothing is registered for.
    """
    for kind_p in type(p).__mro__:
        for kind_q in type(q).__mro__:
            if (kind_p, kind_q) in _divergences:
                return _divergences[kind_p, kind_q](p, q)
    got = f"{type(p).__name__} and {type(q).__name__}"
    raise UndefinedError("kl_divergence", "a pair with a formula", got, "@register_kl(P, Q) adds one")


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        got = f"{p.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims}"
        raise StateError("kl_divergence", "two Independent with the same number of axes", got)
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(ExponentialFamily, ExponentialFamily)
def _exponential_families(p: ExponentialFamily, q: ExponentialFamily) -> Tensor:
    # The Bregman divergence of the log-normalizer: Nielsen and Nock 2010, eq. 8.
    if type(p)._log_normalizer is not type(q)._log_normalizer:
        got = f"{type(p).__name__} and {type(q).__name__}"
        raise UndefinedError("kl_divergence", "a pair with a formula", got, "@register_kl(P, Q) adds one")
    theta_p, theta_q = p._natural_params, q._natural_params
    away = [a - b for a, b in zip(theta_p, theta_q, strict=True)]
    return q._log_normalizer(*theta_q) - bregman(p, theta_p, away)


_kl_expfamily_expfamily = _exponential_families  # PyTorch's name of it

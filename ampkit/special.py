"""The names of `torch.special`: `ampkit.special.expit`."""

from __future__ import annotations

import math

from . import ops
from .base.errors import ArgumentError
from .core.tensor import Tensor
from .ops import (
    digamma,
    erf,
    erfc,
    erfinv,
    exp2,
    expm1,
    log1p,
    log_softmax,
    logit,
    logsumexp,
    polygamma,
    round,
    sinc,
    softmax,
    xlogy,
)
from .ops import digamma as psi
from .ops import lgamma as gammaln
from .ops import sigmoid as expit
from .ops.argument_checks import checked
from .ops.pointwise.incomplete_gamma import gammainc, gammaincc, i0, i0e, i1, i1e
from .ops.pointwise.logit_and_entropy import entr, xlog1py
from .ops.pointwise.normal_quantile import log_ndtr, ndtri

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln", "i0",
    "i0e", "i1", "i1e", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "ndtri",
    "polygamma", "psi", "round", "sinc", "softmax", "xlog1py", "xlogy",
]  # fmt: skip


@checked
def ndtr(input: Tensor) -> Tensor:
    """The standard normal cumulative distribution function, erfc(-x / sqrt(2)) / 2."""
    return ops.erfc(input * -math.sqrt(0.5)) * 0.5


_MAX_DIMENSION = 1 << 16  # one pass over the input per dimension


@checked
def multigammaln(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p, elementwise, for elements above (p - 1) / 2.

    p (p - 1) / 4 log(pi) + the sum of lgamma(x - i / 2) for i below p.
    """
    if not 1 <= p <= _MAX_DIMENSION:
        raise ArgumentError("multigammaln", f"p from 1 to {_MAX_DIMENSION}", f"{p}")
    total = ops.lgamma(input)
    for i in range(1, p):
        total = total + ops.lgamma(input - i / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)

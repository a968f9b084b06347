"""The continuous Bernoulli distribution of numbers from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import ops
from ..core.tensor import Tensor
from . import constraints, draws
from .discrete import given_one, within
from .distribution import ExponentialFamily, lazy_property
from .kl import register_kl

__all__ = ["ContinuousBernoulli"]


class ContinuousBernoulli(ExponentialFamily):
    """Density C p^x (1 - p)^(1 - x), p = `probs` = sigmoid(`logits`), C = 2 artanh(1 - 2 p) / (1 - 2 p).

    Between `lims`, around p = 1 / 2, the first terms of Taylor series stand for quotients of numbers near 0.
    Loaiza-Ganem and Cunningham 2019, arXiv:1907.06845.
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    has_rsample = True
    support = constraints.unit_interval
    _interior = 0.5
    _mean_carrier_measure = 0

    def __init__(
        self,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ):
        name, given = given_one("ContinuousBernoulli", probs, logits)
        self._lims = lims
        self.__dict__[name] = given
        super().__init__(given.shape, (), validate_args)
        if name == "probs":
            self.__dict__["probs"] = within(given)

    @lazy_property
    def probs(self) -> Tensor:
        """The parameter p, the density's ratio at 1 and 0 being p / (1 - p)."""
        return within(ops.sigmoid(self.logits))

    @lazy_property
    def logits(self) -> Tensor:
        """log(probs / (1 - probs))."""
        return self.probs.log() - ops.log1p(-self.probs)

    def _around_half(self) -> tuple[Tensor, Tensor, Tensor]:
        # Whether p is near 1 / 2, p away from it, and p - 1 / 2.
        p = self.probs
        near = (p > self._lims[0]) & (p <= self._lims[1])
        return near, ops.where(near, self._lims[0], p), p - 0.5

    def _log_constant(self) -> Tensor:
        near, p, x = self._around_half()
        far = (2 * ops.atanh(1 - 2 * p) / (1 - 2 * p)).log()
        x2 = x.square()
        return ops.where(near, draws.LOG_2 + (4 / 3 + 104 / 45 * x2) * x2, far)

    @property
    def mean(self) -> Tensor:
        near, p, x = self._around_half()
        far = p / (2 * p - 1) + 1 / (2 * ops.atanh(1 - 2 * p))
        return ops.where(near, 0.5 + (1 / 3 + 16 / 45 * x.square()) * x, far)

    @property
    def variance(self) -> Tensor:
        near, p, x = self._around_half()
        far = p * (p - 1) / (1 - 2 * p).square() + 1 / (2 * ops.atanh(1 - 2 * p)).square()
        x2 = x.square()
        return ops.where(near, 1 / 12 - (1 / 15 - 128 / 945 * x2) * x2, far)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.rsample(sample_shape).detach()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.icdf(draws.uniform(self._extended_shape(sample_shape), self.probs))

    def _log_density(self, x: Tensor) -> Tensor:
        return x * self.logits - ops.softplus(self.logits) + self._log_constant()

    def cdf(self, value: Tensor) -> Tensor:
        near, p, _ = self._around_half()
        x = value.clamp(0, 1)
        return ops.where(near, x, (p**x * (1 - p) ** (1 - x) + p - 1) / (2 * p - 1)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        near, p, _ = self._around_half()
        minus = ops.log1p(-p)
        return ops.where(near, value, (ops.log1p(-p + value * (2 * p - 1)) - minus) / (p.log() - minus))

    def entropy(self) -> Tensor:
        return ops.softplus(self.logits) - self.mean * self.logits - self._log_constant()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.logits,)

    def _log_normalizer(self, x: Any) -> Tensor:
        other = ContinuousBernoulli(logits=x, lims=self._lims, validate_args=False)
        return ops.softplus(x) - other._log_constant()


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoullis(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    log_p = p._log_constant() - ops.softplus(p.logits)
    return p.mean * (p.logits - q.logits) + log_p - q._log_constant() + ops.softplus(q.logits)

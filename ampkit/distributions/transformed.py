"""TransformedDistribution, and the families that are a transform of another one's values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from .. import ops
from ..base.errors import ArgumentError, StateError
from ..core.autograd.grad_mode import no_grad
from ..core.tensor import Tensor
from . import constraints, draws, transforms
from .continuous import Normal
from .distribution import Distribution, Independent, parameters, sum_rightmost
from .kl import kl_divergence, register_kl
from .student import Cauchy
from .transform import ComposeTransform, Transform

__all__ = ["HalfCauchy", "HalfNormal", "LogNormal", "LogisticNormal", "TransformedDistribution"]


class TransformedDistribution(Distribution):
    """The values of `base_distribution`, sent through one or several `transforms`, the first one first."""

    arg_constraints = {}

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ):
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        whole, base_event = ComposeTransform(self.transforms), len(base_distribution.event_shape)
        shape = tuple(base_distribution.batch_shape) + tuple(base_distribution.event_shape)
        n = whole.domain.event_dim
        if len(shape) < n:
            raise ArgumentError(type(self).__name__, f"a base with at least {n} axes", f"{shape}")
        forward = whole.forward_shape(shape)
        wide = whole.inverse_shape(forward)
        if wide != shape:
            base_distribution = base_distribution.expand(wide[: len(wide) - base_event])
        if n > base_event:
            base_distribution = Independent(base_distribution, n - base_event)
        self.base_dist = base_distribution
        cut = len(forward) - (whole.codomain.event_dim + max(base_event - n, 0))
        super().__init__(forward[:cut], forward[cut:], validate_args)

    has_rsample = property(lambda self: self.base_dist.has_rsample)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        new = self._filled(batch_shape, _instance)
        shape = (*batch_shape, *self.event_shape)
        for t in reversed(self.transforms):
            shape = t.inverse_shape(shape)
        new.base_dist = self.base_dist.expand(shape[: len(shape) - len(self.base_dist.event_shape)])
        for name, constraint in self.arg_constraints.items():
            if isinstance(self.__dict__.get(name), Tensor):
                value, n = self.__dict__[name], constraint.event_dim
                new.__dict__[name] = value.expand((*batch_shape, *value.shape[value.ndim - n :]))
        return new

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        more = len(self.event_shape) - found.event_dim
        return constraints.independent(found, more) if more > 0 else found

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return self._forward(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._forward(self.base_dist.rsample(sample_shape))

    def _forward(self, x: Tensor) -> Tensor:
        for t in self.transforms:
            x = t(x)
        return x

    def log_prob(self, value: Tensor) -> Tensor:
        if self._interior is not None:
            return super().log_prob(value)
        found = self._log_density(value)
        if self.event_shape:
            return found
        outside = ~self.support.check(value) & (value == value)
        return ops.where(outside, -math.inf, found)

    def _log_density(self, value: Tensor) -> Tensor:
        n, y = len(self.event_shape), value
        total: Any = 0.0
        for t in reversed(self.transforms):
            x = t.inv(y)
            n += t.domain.event_dim - t.codomain.event_dim
            total = total - sum_rightmost(t.log_abs_det_jacobian(x, y), n - t.domain.event_dim)
            y = x
        return total + sum_rightmost(self.base_dist.log_prob(y), n - len(self.base_dist.event_shape))

    def cdf(self, value: Tensor) -> Tensor:
        for t in reversed(self.transforms):
            value = t.inv(value)
        return self._of_sign(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._forward(self.base_dist.icdf(self._of_sign(value)))

    def _of_sign(self, p: Tensor) -> Tensor:
        # 1 - p where the transforms are decreasing.
        sign: Any = math.prod(t.sign for t in self.transforms)
        return p if isinstance(sign, int) and sign == 1 else sign * (p - 0.5) + 0.5

    def __repr__(self) -> str:
        if self.arg_constraints:
            return super().__repr__()
        return f"{type(self).__name__}({self.base_dist!r}, {self.transforms!r})"


class LogNormal(TransformedDistribution):
    """exp of a Normal of mean `loc` and standard deviation `scale`."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.positive
    _interior = 1.0

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None):
        base = Normal(loc, scale, validate_args=False)
        super().__init__(base, transforms.ExpTransform(), validate_args)

    loc = property(lambda self: self.base_dist.loc)
    scale = property(lambda self: self.base_dist.scale)
    mean = property(lambda self: (self.loc + 0.5 * self.scale.square()).exp())
    mode = property(lambda self: (self.loc - self.scale.square()).exp())
    variance = property(lambda self: ops.expm1(self.scale.square()) * (2 * self.loc + self.scale.square()).exp())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return draws.in_range(super().rsample(sample_shape), positive=True)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return draws.in_range(super().sample(sample_shape), positive=True)

    def cdf(self, value: Tensor) -> Tensor:
        return ops.where(value > 0, self.base_dist.cdf(ops.where(value > 0, value, 1.0).log()), 0.0)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class LogisticNormal(TransformedDistribution):
    """The vector of K that stick breaking makes of K - 1 Normals: `loc` and `scale` [.., K - 1]."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.simplex

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None):
        base = Normal(loc, scale, validate_args)
        if not base.batch_shape:
            base = base.expand((1,))
        super().__init__(base, transforms.StickBreakingTransform(), validate_args=False)

    loc = property(lambda self: self.base_dist.base_dist.loc)
    scale = property(lambda self: self.base_dist.base_dist.scale)


class _Half(TransformedDistribution):
    # The absolute values of a distribution that is symmetric about 0.
    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative

    scale = property(lambda self: self.base_dist.scale)
    mode = property(lambda self: ops.zeros_like(self.scale))

    def log_prob(self, value: Tensor) -> Tensor:
        return ops.where(value < 0, -math.inf, self.base_dist.log_prob(value) + math.log(2))

    def cdf(self, value: Tensor) -> Tensor:
        return 2 * self.base_dist.cdf(value.clamp(min=0)) - 1

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)


class HalfNormal(_Half):
    """|x| of a Normal of mean 0 and standard deviation `scale`."""

    def __init__(self, scale: Tensor | float, validate_args: bool | None = None):
        base = Normal(0.0, parameters(scale)[0], validate_args=False)
        super().__init__(base, transforms.AbsTransform(), validate_args)

    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi))
    variance = property(lambda self: self.scale.square() * (1 - 2 / math.pi))


class HalfCauchy(_Half):
    """|x| of a Cauchy distribution about 0 of scale `scale`."""

    def __init__(self, scale: Tensor | float, validate_args: bool | None = None):
        base = Cauchy(0.0, parameters(scale)[0], validate_args=False)
        super().__init__(base, transforms.AbsTransform(), validate_args)

    mean = property(lambda self: ops.full_like(self.scale, math.inf))
    variance = property(lambda self: ops.full_like(self.scale, math.inf))


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise StateError("kl_divergence", "two distributions with equal transforms", "others")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(HalfNormal, HalfNormal)
def _half_normals(p: HalfNormal, q: HalfNormal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio - 1 - ratio.log())


@register_kl(LogNormal, LogNormal)
def _log_normals(p: LogNormal, q: LogNormal) -> Tensor:
    return kl_divergence(p.base_dist, q.base_dist)

"""Distribution: a batch of independent distributions of one family, and those whose last batch axes are one event."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

from .. import ops
from ..base.errors import ArgumentError, StateError
from ..core.arguments import checked_constructor
from ..core.autograd.grad_mode import no_grad
from ..core.tensor import Tensor
from ..core.tensor_base import Shape
from ..ops.argument_checks import check_methods, checked
from . import constraints


def parameters(*values: Any) -> tuple[Tensor, ...]:
    """Numbers and tensors as tensors of one shape."""
    found = [value if isinstance(value, Tensor) else ops.tensor(float(value)) for value in values]
    return tuple(ops.broadcast_tensors(*found))


class Distribution:
    """The base: `batch_shape` distributions, each over events of `event_shape`.

    A subclass names its parameters in `names`, which are attributes of shape batch_shape, or batch_shape and as many
    axes as event_shape has, and checks them in its constructor unless validate_args is False.
    """

    names: tuple[str, ...] = ()
    has_rsample = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checked_constructor(cls)
        check_methods(cls)

    def __init__(
        self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (), validate_args: bool | None = None
    ):
        self.batch_shape, self.event_shape = Shape(batch_shape), Shape(event_shape)
        self.validates = validate_args is not False

    def _need(self, name: str, condition: Any, needs: str) -> None:
        if self.validates and not bool(condition.all()):  # reads the device, as in PyTorch
            raise ArgumentError(
                type(self).__name__, f"{name} {needs}", "others", "validate_args=False skips this check"
            )

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Random values [*sample_shape, *batch_shape, *event_shape], off the tape."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Random values as a differentiable function of the parameters. Raises StateError where there is none."""
        raise StateError(f"{type(self).__name__}.rsample", "a distribution of continuous values", "a discrete one")

    def sample_n(self, n: int) -> Tensor:
        """`sample((n,))`."""
        return self.sample((n,))

    def _shape(self, sample_shape: Sequence[int]) -> tuple[int, ...]:
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    @property
    def support(self) -> constraints.Constraint:
        """The values that may be drawn: `support.check(value)` is a bool per event."""
        raise self._lacks("support")

    @property
    def mean(self) -> Tensor:
        """The mean [*batch_shape, *event_shape]."""
        raise self._lacks("mean")

    @property
    def variance(self) -> Tensor:
        """The variance [*batch_shape, *event_shape]."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, at `value` [..., *batch_shape, *event_shape]."""
        raise self._lacks("log_prob")

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        raise self._lacks("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        raise self._lacks("icdf")

    def entropy(self) -> Tensor:
        """The entropy in nats, [*batch_shape]."""
        raise self._lacks("entropy")

    def perplexity(self) -> Tensor:
        """exp(entropy)."""
        return self.entropy().exp()

    def _lacks(self, name: str) -> StateError:
        return StateError(f"{type(self).__name__}.{name}", "a distribution with it", "one without")

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """The same distribution for a larger batch."""
        given = {name: getattr(self, name).expand((*batch_shape, *self.event_shape)) for name in self.names}
        return type(self)(**given, validate_args=False)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {getattr(self, name)}" for name in self.names)
        return f"{type(self).__name__}({shapes})"


checked_constructor(Distribution)
check_methods(Distribution)


class Independent(Distribution):
    """`base_distribution` with its last axes of the batch read as axes of the event: log_prob is summed over them."""

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ):
        batch, n = base_distribution.batch_shape, reinterpreted_batch_ndims
        if not 0 <= n <= len(batch):
            raise ArgumentError("Independent", f"reinterpreted_batch_ndims from 0 to {len(batch)}", str(n))
        cut = len(batch) - n
        super().__init__(batch[:cut], batch[cut:] + tuple(base_distribution.event_shape), validate_args)
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, n
        self.has_rsample = base_distribution.has_rsample

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    @property
    def support(self) -> constraints.Constraint:
        held, n = self.base_dist.support, self.reinterpreted_batch_ndims
        over = tuple(range(-n, 0))
        return constraints.Constraint(
            lambda x: held.check(x).all(over) if n else held.check(x), held.event_dim + n, held.is_discrete
        )

    mean = property(lambda self: self.base_dist.mean)
    variance = property(lambda self: self.base_dist.variance)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self._summed(self.base_dist.entropy())

    def _summed(self, values: Tensor) -> Tensor:
        n = self.reinterpreted_batch_ndims
        return values.sum(tuple(range(-n, 0))) if n else values

    def expand(self, batch_shape: Sequence[int]) -> Self:
        batch = (*batch_shape, *self.event_shape[: self.reinterpreted_batch_ndims])
        return type(self)(self.base_dist.expand(batch), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


_divergences: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Callable[[Any, Any], Tensor]], Callable[[Any, Any], Tensor]]:
    """Decorate the function that computes KL(p || q) for two classes and their subclasses."""

    def register(function: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
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
    raise StateError("kl_divergence", "a pair with a formula", got, "@register_kl(P, Q) adds one")


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        got = f"{p.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims}"
        raise StateError("kl_divergence", "two Independent with the same number of axes", got)
    return p._summed(kl_divergence(p.base_dist, q.base_dist))


LOG_2PI = math.log(2 * math.pi)

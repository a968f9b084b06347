"""Distribution: a batch of independent distributions of one family, and those whose last batch axes are one event."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from .. import ops
from ..base.errors import ArgumentError, DTypeError, ShapeError, UndefinedError, switch
from ..core.arguments import checked_constructor, shown
from ..core.autograd.grad_mode import enable_grad, no_grad
from ..core.autograd.tape import grad
from ..core.tensor import Tensor
from ..core.tensor_base import Shape
from ..ops.argument_checks import check_methods
from . import constraints

LOG_2PI = math.log(2 * math.pi)


class lazy_property(cached_property[Any]):
    """An attribute that is computed once, on the tape even where the first reader is off it."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        with enable_grad():
            return super().__get__(instance, owner)


def parameters(*values: Any) -> tuple[Tensor, ...]:
    """Numbers and tensors as tensors of one shape; numbers get the dtype and device of the first tensor."""
    like = next((value for value in values if isinstance(value, Tensor)), None)
    dtype = like.dtype if like is not None and like.is_floating_point() else None
    device = None if like is None else like.device
    found = [v if isinstance(v, Tensor) else ops.tensor(float(v), dtype=dtype, device=device) for v in values]
    return tuple(ops.broadcast_tensors(*found))


def like(value: Tensor | float, parameter: Tensor) -> Tensor:
    """A number as a tensor of the dtype and on the device of a parameter; a tensor as it is."""
    if isinstance(value, Tensor):
        return value
    return ops.tensor(float(value), dtype=parameter.dtype, device=parameter.device)


def sum_rightmost(values: Tensor, n: int) -> Tensor:
    """The sum over the last n axes."""
    return values.sum(tuple(range(-n, 0))) if n else values


class Distribution:
    """The base: `batch_shape` distributions, each over events of `event_shape`.

    A subclass says in `arg_constraints` which values its parameters may have: attributes of shape batch_shape and as
    many axes more as their constraint's event_dim. They are checked unless validate_args is False.
    """

    has_rsample = False
    has_enumerate_support = False
    arg_constraints: Mapping[str, constraints.Constraint] = {}
    _validate_args: bool = True
    _interior: Any = None  # a value of the support, of a subclass whose `_log_density` holds within it alone

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checked_constructor(cls)
        check_methods(cls)

    def __init__(
        self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (), validate_args: bool | None = None
    ):
        self._batch_shape, self._event_shape = Shape(batch_shape), Shape(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_parameters()

    def _check_parameters(self) -> None:
        for name, constraint in self.arg_constraints.items():
            is_lazy = isinstance(getattr(type(self), name, None), cached_property) and name not in self.__dict__
            if not constraints.is_dependent(constraint) and not is_lazy:
                self._need(name, constraint.check(getattr(self, name)), constraint.needs or f"in {constraint!r}")

    def _need(self, name: str, condition: Any, needs: str) -> None:
        if self._validate_args and not bool(condition.all()):  # reads the device, as in PyTorch
            raise ArgumentError(
                type(self).__name__, f"{name} {needs}", "others", "validate_args=False skips this check"
            )

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions check their parameters where validate_args is not given."""
        Distribution._validate_args = switch("set_default_validate_args", "value", value)

    @property
    def batch_shape(self) -> Shape:
        """The shape of the batch."""
        return self._batch_shape

    @property
    def event_shape(self) -> Shape:
        """The shape of one event."""
        return self._event_shape

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Random values [*sample_shape, *batch_shape, *event_shape], off the tape."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Random values as a differentiable function of the parameters. Raises StateError where there is none."""
        raise UndefinedError(
            f"{type(self).__name__}.rsample", "a distribution that has_rsample", "one without", "sample()"
        )

    def sample_n(self, n: int) -> Tensor:
        """`sample((n,))`."""
        return self.sample((n,))

    def rsample_n(self, n: int) -> Tensor:
        """`rsample((n,))`."""
        return self.rsample((n,))

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Shape:
        return Shape((*sample_shape, *self._batch_shape, *self._event_shape))

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        """The values that may be drawn: `support.check(value)` is a bool per event."""
        raise self._lacks("support")

    @property
    def mean(self) -> Tensor:
        """The mean [*batch_shape, *event_shape]."""
        raise self._lacks("mean")

    @property
    def mode(self) -> Tensor:
        """The likeliest value [*batch_shape, *event_shape]."""
        raise self._lacks("mode")

    @property
    def variance(self) -> Tensor:
        """The variance [*batch_shape, *event_shape]."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, at `value` [..., *batch_shape, *event_shape].

        -inf outside of the support of a distribution over numbers.
        """
        if (interior := self._interior) is None:
            raise self._lacks("log_prob")
        self._need_event(value)
        return self._on_support(value, interior, self._log_density)

    def _log_density(self, value: Tensor) -> Tensor:
        raise self._lacks("_log_density")

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

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of a discrete distribution [K, *batch_shape], or [K, 1...] without `expand`."""
        raise self._lacks("enumerate_support")

    def _lacks(self, name: str) -> UndefinedError:
        return UndefinedError(f"{type(self).__name__}.{name}", "a distribution with it", "one without")

    def _validate_sample(self, value: Tensor) -> None:
        # Raises for a value whose shape or elements are not of this distribution, as PyTorch's log_prob does.
        name = type(self).__name__
        if not isinstance(value, Tensor):
            raise ArgumentError(name, "a value that is a Tensor", type(value).__name__)
        self._need_event(value)
        ops.broadcast_shapes(tuple(value.shape), self._extended_shape())
        support = self.support
        if support is not None and not bool(support.check(value).all()):
            raise ArgumentError(name, f"values {support.needs or f'in {support!r}'}", "others")

    def _need_event(self, value: Tensor) -> None:
        n = len(self._event_shape)
        if n and value.shape[-n:] != self._event_shape:
            needs = f"a value whose last axes are {tuple(self._event_shape)}"
            raise ShapeError(type(self).__name__, needs, f"shape {tuple(value.shape)}")

    def _on_support(self, value: Tensor, interior: Any, log_density: Callable[[Tensor], Tensor]) -> Tensor:
        # log_density(value), and -inf outside of the support, where it is evaluated at `interior`. NaN stays NaN.
        n = len(self._event_shape)
        known = value == value
        outside = ~self.support.check(value) & (known.all(tuple(range(-n, 0))) if n else known)
        inner = ops.where(outside.reshape(*outside.shape, *(1,) * n), interior, value)
        return ops.where(outside, -math.inf, log_density(inner))

    def _get_checked_instance(self, cls: Any, _instance: Any = None) -> Any:
        # The object that `expand` fills. A subclass with a constructor of its own has to fill it itself.
        if _instance is None and type(self).__init__ is not cls.__init__:
            name = type(self).__name__
            raise UndefinedError(f"{name}.expand", "an expand method beside the constructor of the subclass", "none")
        return self.__new__(type(self)) if _instance is None else _instance

    def _to_fill(self, _instance: Any) -> Any:
        if _instance is not None and not isinstance(_instance, Distribution):
            raise DTypeError("Distribution.expand", "_instance as a Distribution", shown(_instance))
        return object.__new__(type(self)) if _instance is None else _instance

    def _filled(self, batch_shape: Sequence[int], _instance: Any) -> Any:
        # What `expand` returns, but for the parameters, which the subclass expands.
        new = self._to_fill(_instance)
        new.__dict__.update(self.__dict__, _batch_shape=Shape(batch_shape))
        return new

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """The same distribution for a larger batch."""
        new, batch = self._to_fill(_instance), Shape(batch_shape)
        for name, value in self.__dict__.items():
            is_parameter = name in self.arg_constraints
            if is_parameter and isinstance(value, Tensor):
                n = self.arg_constraints[name].event_dim
                value = value.expand((*batch, *value.shape[value.ndim - n :]))
            elif isinstance(getattr(type(self), name, None), cached_property) and not is_parameter:
                continue
            elif isinstance(value, Distribution) and value.batch_shape == self._batch_shape:
                value = value.expand(batch)
            new.__dict__[name] = value
        new._batch_shape = batch
        return new

    def __repr__(self) -> str:
        names = [name for name in self.arg_constraints if name in self.__dict__]
        values = [getattr(self, name) for name in names]
        shown = [value if getattr(value, "ndim", 0) == 0 else tuple(value.shape) for value in values]
        pairs = ", ".join(f"{name}: {value}" for name, value in zip(names, shown, strict=True))
        return f"{type(self).__name__}({pairs})"


checked_constructor(Distribution)
check_methods(Distribution)


class ExponentialFamily(Distribution):
    """Densities exp(<t(x), theta> - F(theta) + k(x)) of natural parameters theta.

    A subclass has the tuple `_natural_params`, F as `_log_normalizer(*theta)`, and the mean of k(x) as
    `_mean_carrier_measure`. entropy is then F - <theta, dF/dtheta> - mean of k. Nielsen and Nock 2010, ICIP.
    """

    _mean_carrier_measure: Any = 0.0

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        raise self._lacks("_natural_params")

    def _log_normalizer(self, *natural_params: Any) -> Tensor:
        raise self._lacks("_log_normalizer")

    def entropy(self) -> Tensor:
        return bregman(self, self._natural_params, self._natural_params) - self._mean_carrier_measure


def bregman(p: ExponentialFamily, at: Sequence[Tensor], to: Sequence[Tensor]) -> Tensor:
    """F(at) - <to, dF/dtheta at `at`>, [*batch_shape], of the log-normalizer F of an exponential family."""
    with enable_grad():
        theta = [value if value.requires_grad else value.detach().requires_grad_() for value in at]
        normalizer = p._log_normalizer(*theta)
        slopes = grad(normalizer.sum(), theta, create_graph=True)
    found, n = normalizer, len(p.event_shape)
    for value, slope in zip(to, slopes, strict=True):
        if slope is not None:
            found = found - sum_rightmost(value * slope, n)
    return found


class Independent(Distribution):
    """`base_distribution` with its last axes of the batch read as axes of the event: log_prob is summed over them."""

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ):
        batch, n = base_distribution.batch_shape, reinterpreted_batch_ndims
        if not 0 <= n <= len(batch):
            raise ArgumentError("Independent", f"reinterpreted_batch_ndims from 0 to {len(batch)}", str(n))
        cut = len(batch) - n
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, n
        super().__init__(batch[:cut], batch[cut:] + tuple(base_distribution.event_shape), validate_args)

    has_rsample = property(lambda self: self.base_dist.has_rsample)
    has_enumerate_support = property(
        lambda self: not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support
    )

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        held, n = self.base_dist.support, self.reinterpreted_batch_ndims
        return constraints.independent(held, n) if n else held

    mean = property(lambda self: self.base_dist.mean)
    mode = property(lambda self: self.base_dist.mode)
    variance = property(lambda self: self.base_dist.variance)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims:
            raise UndefinedError("Independent.enumerate_support", "no axes of the batch in the event", "some")
        return self.base_dist.enumerate_support(expand)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        new = self._filled(batch_shape, _instance)
        batch = (*batch_shape, *self.event_shape[: self.reinterpreted_batch_ndims])
        new.base_dist = self.base_dist.expand(batch)
        return new

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist!r}, {self.reinterpreted_batch_ndims})"

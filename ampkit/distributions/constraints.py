"""Constraints: tests of which values are valid, by PyTorch's names. `positive.check(value)` is a bool per value.

A class of constraints is a key of `constraint_registry`, which has a transform from real numbers onto each.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from .. import linalg, ops
from ..base import dtypes
from ..base.errors import StateError, UndefinedError
from ..core.tensor import Tensor
from ..ops.argument_checks import check_methods

__all__ = [
    "Constraint", "MixtureSameFamilyConstraint", "boolean", "cat", "corr_cholesky", "dependent", "dependent_property",
    "greater_than", "greater_than_eq", "half_open_interval", "independent", "integer_interval", "interval",
    "is_dependent", "less_than", "lower_cholesky", "lower_triangular", "multinomial", "nonnegative",
    "nonnegative_integer", "one_hot", "positive", "positive_definite", "positive_integer", "positive_semidefinite",
    "real", "real_vector", "simplex", "square", "stack", "symmetric", "unit_interval",
]  # fmt: skip


class Constraint:
    """A set of valid values. event_dim: trailing axes of one value; is_discrete: whether they are integers.

    needs: the set in words, for errors.
    """

    is_discrete: bool = False
    event_dim: int = 0
    needs = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_methods(cls)

    def check(self, value: Tensor) -> Tensor:
        """Whether each value is in the set: bool, of the shape of `value` without its last event_dim axes."""
        raise UndefinedError(f"{type(self).__name__}.check", "a constraint that has the method", "one without")

    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_')}()"


check_methods(Constraint)


class _Dependent(Constraint):
    # Depends on other parameters. Its event_dim and is_discrete may be unknown, and are then not to be read.
    needs = "within the bounds that other parameters set"

    def __init__(self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented):
        self._is_discrete, self._event_dim = is_discrete, event_dim
        super().__init__()

    # Raise StateError where they are not known.
    is_discrete = property(lambda self: bool(self._known("is_discrete", self._is_discrete)))
    event_dim = property(lambda self: int(self._known("event_dim", self._event_dim)))

    def _known(self, name: str, value: Any) -> Any:
        if value is NotImplemented:
            raise UndefinedError(f"dependent.{name}", f"a constraint made with {name}=", "one without")
        return value

    def __call__(self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented) -> _Dependent:
        """The same with what is known of it: `dependent(is_discrete=False, event_dim=0)`."""
        return _Dependent(
            is_discrete=self._is_discrete if is_discrete is NotImplemented else is_discrete,
            event_dim=self._event_dim if event_dim is NotImplemented else event_dim,
        )

    def check(self, value: Tensor) -> Tensor:
        raise StateError("dependent.check", "a constraint of given bounds", "one that other parameters set")


class dependent_property(property, _Dependent):
    """Decorate a method that computes a constraint from the other parameters of a distribution, such as `support`."""

    def __init__(
        self,
        fget: Callable[[Any], Any] | None = None,
        fset: Any = None,
        fdel: Any = None,
        doc: str | None = None,
        *,
        is_discrete: Any = NotImplemented,
        event_dim: Any = NotImplemented,
    ):
        property.__init__(self, fget, fset, fdel, doc)
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def __call__(self, fget: Any = None, **known: Any) -> Any:
        """`@dependent_property(is_discrete=False, event_dim=0)`."""
        return dependent_property(fget, is_discrete=self._is_discrete, event_dim=self._event_dim)


def is_dependent(constraint: Any) -> bool:
    """Whether a constraint depends on other parameters."""
    return isinstance(constraint, _Dependent)


class independent(Constraint):
    """A constraint whose last `reinterpreted_batch_ndims` axes of the batch are axes of a value: all must hold."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int):
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims

    is_discrete = property(lambda self: self.base_constraint.is_discrete)
    event_dim = property(lambda self: self.base_constraint.event_dim + self.reinterpreted_batch_ndims)
    needs = property(lambda self: self.base_constraint.needs)

    def check(self, value: Tensor) -> Tensor:
        n = self.reinterpreted_batch_ndims
        if value.ndim < self.event_dim:
            raise StateError("independent.check", f"values of at least {self.event_dim} axes", f"{value.ndim}")
        found = self.base_constraint.check(value)
        return found.all(tuple(range(-n, 0))) if n else found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


class MixtureSameFamilyConstraint(Constraint):
    """The support of the components of a mixture, for a value without their axis."""

    def __init__(self, base_constraint: Constraint):
        self.base_constraint = base_constraint

    is_discrete = property(lambda self: self.base_constraint.is_discrete)
    event_dim = property(lambda self: self.base_constraint.event_dim)
    needs = property(lambda self: self.base_constraint.needs)

    def check(self, value: Tensor) -> Tensor:
        found = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        return found.all(-1)


class _Real(Constraint):
    needs = "as a number"

    def check(self, value: Tensor) -> Tensor:
        return value == value


class _Boolean(Constraint):
    is_discrete = True
    needs = "0 or 1"

    def check(self, value: Tensor) -> Tensor:
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    is_discrete, event_dim = True, 1
    needs = "one-hot"

    def check(self, value: Tensor) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _Bounded(Constraint):
    def __repr__(self) -> str:
        bounds = [str(value) for name, value in vars(self).items() if name.endswith("_bound")]
        return f"{type(self).__name__}({', '.join(bounds)})"


class greater_than(_Bounded):
    """Values above a bound."""

    def __init__(self, lower_bound: Any):
        self.lower_bound = lower_bound
        self.needs = f"above {_number(lower_bound)}"

    def check(self, value: Tensor) -> Tensor:
        return value > self.lower_bound


class greater_than_eq(_Bounded):
    """Values from a bound on."""

    def __init__(self, lower_bound: Any):
        self.lower_bound = lower_bound
        self.needs = f"from {_number(lower_bound)}"

    def check(self, value: Tensor) -> Tensor:
        return value >= self.lower_bound


class less_than(_Bounded):
    """Values below a bound."""

    def __init__(self, upper_bound: Any):
        self.upper_bound = upper_bound
        self.needs = f"below {_number(upper_bound)}"

    def check(self, value: Tensor) -> Tensor:
        return value < self.upper_bound


class interval(_Bounded):
    """Values between two bounds, which are in it."""

    def __init__(self, lower_bound: Any, upper_bound: Any):
        self.lower_bound, self.upper_bound = lower_bound, upper_bound
        self.needs = f"from {_number(lower_bound)} to {_number(upper_bound)}"

    def check(self, value: Tensor) -> Tensor:
        return (value >= self.lower_bound) & (value <= self.upper_bound)


class half_open_interval(interval):
    """Values between two bounds, the lower of which is in it."""

    def check(self, value: Tensor) -> Tensor:
        return (value >= self.lower_bound) & (value < self.upper_bound)


class integer_interval(interval):
    """Integers between two bounds, which are in it."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & (value >= self.lower_bound) & (value <= self.upper_bound)


class _IntegerFrom(greater_than_eq):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value % 1 == 0) & (value >= self.lower_bound)


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, (int, float)) else "the bound"


class multinomial(Constraint):
    """Vectors of integers from 0 whose sum is at most `upper_bound`."""

    is_discrete, event_dim = True, 1
    needs = "as counts"

    def __init__(self, upper_bound: Any):
        self.upper_bound = upper_bound

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class _Simplex(Constraint):
    event_dim = 1
    needs = "from 0, with sum 1"

    def check(self, value: Tensor) -> Tensor:
        eps = 1e-6 if value.array.dtype.itemsize > 2 else 4 * dtypes.finfo(value.dtype).eps
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < eps)


class _Square(Constraint):
    event_dim = 2
    needs = "square"

    def check(self, value: Tensor) -> Tensor:
        return ops.full(tuple(value.shape[:-2]), value.shape[-2] == value.shape[-1], device=value.device)


class _Symmetric(_Square):
    needs = "symmetric"

    def check(self, value: Tensor) -> Tensor:
        square = super().check(value)
        if value.shape[-2] != value.shape[-1]:
            return square
        return square & ops.isclose(value, value.mT, atol=1e-6).all(-1).all(-1)


class _PositiveDefinite(_Symmetric):
    needs = "positive definite"

    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        if value.shape[-2] != value.shape[-1]:
            return symmetric
        return symmetric & (linalg.eigvalsh(value) > 0).all(-1)


class _PositiveSemidefinite(_Symmetric):
    needs = "positive semidefinite"

    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        if value.shape[-2] != value.shape[-1]:
            return symmetric
        return symmetric & (linalg.eigvalsh(value) >= -1e-6).all(-1)


class _LowerTriangular(Constraint):
    event_dim = 2
    needs = "lower triangular"

    def check(self, value: Tensor) -> Tensor:
        return (value.tril() == value).all(-1).all(-1)


class _LowerCholesky(_LowerTriangular):
    needs = "lower triangular, with a positive diagonal"

    def check(self, value: Tensor) -> Tensor:
        return super().check(value) & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class _CorrCholesky(_LowerCholesky):
    needs = "lower triangular, with a positive diagonal and rows of norm 1"

    def check(self, value: Tensor) -> Tensor:
        tolerance = dtypes.finfo(value.dtype).eps * value.shape[-1] * 10
        rows = linalg.norm(value.detach(), dim=-1)
        return super().check(value) & ((rows - 1).abs() <= tolerance).all(-1)


class _Joined(Constraint):
    def __init__(self, parts: Sequence[Constraint], dim: int, lengths: Sequence[int]):
        self.cseq, self.dim, self.lengths = builtins.list(parts), dim, builtins.list(lengths)

    is_discrete = property(lambda self: any(part.is_discrete for part in self.cseq))
    event_dim = property(lambda self: max(part.event_dim for part in self.cseq))


class cat(_Joined):
    """Constraints of the parts of a tensor, of `lengths` along `dim`."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None):
        super().__init__(cseq, dim, [1] * len(cseq) if lengths is None else lengths)

    def check(self, value: Tensor) -> Tensor:
        parts = value.split(self.lengths, self.dim)
        return ops.cat([part.check(v) for part, v in zip(self.cseq, parts, strict=True)], self.dim)


class stack(_Joined):
    """Constraints of the slices of a tensor along `dim`."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0):
        super().__init__(cseq, dim, [1] * len(cseq))

    def check(self, value: Tensor) -> Tensor:
        parts = value.unbind(self.dim)
        return ops.stack([part.check(v) for part, v in zip(self.cseq, parts, strict=True)], self.dim)


dependent = _Dependent()
real, boolean, one_hot = _Real(), _Boolean(), _OneHot()
real_vector = independent(real, 1)
positive, nonnegative, unit_interval = greater_than(0.0), greater_than_eq(0.0), interval(0.0, 1.0)
nonnegative_integer, positive_integer = _IntegerFrom(0), _IntegerFrom(1)
simplex, square, symmetric = _Simplex(), _Square(), _Symmetric()
lower_triangular, lower_cholesky, corr_cholesky = _LowerTriangular(), _LowerCholesky(), _CorrCholesky()
positive_definite, positive_semidefinite = _PositiveDefinite(), _PositiveSemidefinite()

# The classes by the names that libraries take them by, of PyTorch's private ones.
_Cat, _Stack, _DependentProperty, _IndependentConstraint = cat, stack, dependent_property, independent
_GreaterThan, _GreaterThanEq, _LessThan, _Multinomial = greater_than, greater_than_eq, less_than, multinomial
_Interval, _HalfOpenInterval, _IntegerInterval, _IntegerGreaterThan = (
    interval, half_open_interval, integer_interval, _IntegerFrom,
)  # fmt: skip

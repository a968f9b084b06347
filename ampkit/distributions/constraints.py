"""Constraints: tests of which values are valid, by PyTorch's names. `positive.check(value)` is a bool per value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import linalg
from ..core.tensor import Tensor
from ..ops.argument_checks import check_methods

__all__ = [
    "Constraint", "boolean", "greater_than", "greater_than_eq", "half_open_interval", "integer_interval", "interval",
    "less_than", "lower_cholesky", "lower_triangular", "nonnegative", "nonnegative_integer", "one_hot", "positive",
    "positive_definite", "positive_integer", "positive_semidefinite", "real", "real_vector", "simplex", "square",
    "symmetric", "unit_interval",
]  # fmt: skip


class Constraint:
    """A set of valid values. event_dim: trailing axes of one value; is_discrete: whether they are integers."""

    def __init__(self, holds: Callable[[Tensor], Any], event_dim: int = 0, is_discrete: bool = False):
        self._holds, self.event_dim, self.is_discrete = holds, event_dim, is_discrete

    def check(self, value: Tensor) -> Tensor:
        """Whether each value is in the set: bool, of the shape of `value` without its last event_dim axes."""
        found: Tensor = self._holds(value)
        return found


check_methods(Constraint)


def greater_than(lower_bound: Any) -> Constraint:
    """Values above a bound."""
    return Constraint(lambda x: x > lower_bound)


def greater_than_eq(lower_bound: Any) -> Constraint:
    """Values from a bound on."""
    return Constraint(lambda x: x >= lower_bound)


def less_than(upper_bound: Any) -> Constraint:
    """Values below a bound."""
    return Constraint(lambda x: x < upper_bound)


def interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Values between two bounds, which are in it."""
    return Constraint(lambda x: (x >= lower_bound) & (x <= upper_bound))


def half_open_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Values between two bounds, the lower of which is in it."""
    return Constraint(lambda x: (x >= lower_bound) & (x < upper_bound))


def integer_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Integers between two bounds, which are in it."""
    return Constraint(lambda x: (x % 1 == 0) & (x >= lower_bound) & (x <= upper_bound), is_discrete=True)


def _integers_from(least: int) -> Constraint:
    return Constraint(lambda x: (x % 1 == 0) & (x >= least), is_discrete=True)


def _is_square(x: Tensor) -> Any:
    same = x.shape[-2] == x.shape[-1]
    return x.new_full(x.shape[:-2], same).bool()


def _is_symmetric(x: Tensor) -> Any:
    return _is_square(x) & ((x - x.mT).abs() <= 1e-6).all(-1).all(-1)


def _is_lower(x: Tensor) -> Any:
    return (x.tril() == x).all(-1).all(-1)


real = Constraint(lambda x: x == x)
real_vector = Constraint(lambda x: (x == x).all(-1), 1)
boolean = Constraint(lambda x: (x == 0) | (x == 1), is_discrete=True)
positive, nonnegative, unit_interval = greater_than(0.0), greater_than_eq(0.0), interval(0.0, 1.0)
nonnegative_integer, positive_integer = _integers_from(0), _integers_from(1)
one_hot = Constraint(lambda x: ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1), 1, True)
simplex = Constraint(lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6), 1)
square, symmetric = Constraint(_is_square, 2), Constraint(_is_symmetric, 2)
lower_triangular = Constraint(_is_lower, 2)
lower_cholesky = Constraint(lambda x: _is_lower(x) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1), 2)
positive_definite = Constraint(lambda x: _is_symmetric(x) & (linalg.eigvalsh(x) > 0).all(-1), 2)
positive_semidefinite = Constraint(lambda x: _is_symmetric(x) & (linalg.eigvalsh(x) >= -1e-6).all(-1), 2)

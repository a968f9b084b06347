"""biject_to and transform_to: from a constraint to a transform of real numbers onto the values that it allows.

    scale = transform_to(constraints.positive)(unconstrained)

`biject_to` has bijections with a log-determinant, `transform_to` maps that suit optimization and may be neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.errors import StateError
from . import constraints, transforms
from .transform import Transform

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """From the class of a constraint to a function that makes a transform onto it."""

    def __init__(self) -> None:
        self._registry: dict[type, Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Register `factory`, or decorate one, for the class of `constraint`, an object or a class."""
        if factory is None:
            return lambda function: self.register(constraint, function)
        kind = constraint if isinstance(constraint, type) else type(constraint)
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint: constraints.Constraint) -> Transform:
        """A transform onto `constraint`. Raises StateError (a NotImplementedError) where none is registered."""
        factory = self._registry.get(type(constraint))
        if factory is None:
            kind = type(constraint).__name__
            raise _UnknownConstraintError("transform_to", "a constraint with a transform", kind, "register one")
        return factory(constraint)


class _UnknownConstraintError(StateError, NotImplementedError):
    pass


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _both(constraint: Any, factory: Factory) -> None:
    biject_to.register(constraint, factory)
    transform_to.register(constraint, factory)


def _between(constraint: Any) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if all(isinstance(bound, (int, float)) for bound in (low, high)) and (low, high) == (0, 1):
        return transforms.SigmoidTransform()
    onto = transforms.AffineTransform(low, high - low)
    return transforms.ComposeTransform([transforms.SigmoidTransform(), onto])


def _beyond(bound: Any, sign: int) -> Transform:
    if isinstance(bound, (int, float)) and bound == 0 and sign > 0:
        return transforms.ExpTransform()
    return transforms.ComposeTransform([transforms.ExpTransform(), transforms.AffineTransform(bound, sign)])


_both(constraints.real, lambda c: transforms.identity_transform)
_both(constraints.positive, lambda c: _beyond(c.lower_bound, 1))
_both(constraints.nonnegative, lambda c: _beyond(c.lower_bound, 1))
_both(constraints.less_than, lambda c: _beyond(c.upper_bound, -1))
_both(constraints.unit_interval, _between)
_both(constraints.half_open_interval, _between)
_both(constraints.corr_cholesky, lambda c: transforms.CorrCholeskyTransform())
biject_to.register(constraints.simplex, lambda c: transforms.StickBreakingTransform())
transform_to.register(constraints.simplex, lambda c: transforms.SoftmaxTransform())
transform_to.register(constraints.lower_cholesky, lambda c: transforms.LowerCholeskyTransform())
for _constraint in (constraints.positive_definite, constraints.positive_semidefinite):
    transform_to.register(_constraint, lambda c: transforms.PositiveDefiniteTransform())


def _register_joined(registry: ConstraintRegistry) -> None:
    registry.register(
        constraints.independent,
        lambda c: transforms.IndependentTransform(registry(c.base_constraint), c.reinterpreted_batch_ndims),
    )
    registry.register(
        constraints.cat, lambda c: transforms.CatTransform([registry(part) for part in c.cseq], c.dim, c.lengths)
    )
    registry.register(
        constraints.stack, lambda c: transforms.StackTransform([registry(part) for part in c.cseq], c.dim)
    )


_register_joined(biject_to)
_register_joined(transform_to)

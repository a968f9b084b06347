"""Constraints tell values that are valid from others."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit.distributions import constraints

SPD, INDEFINITE = [[2.0, 0.5], [0.5, 1.0]], [[1.0, 2.0], [2.0, 1.0]]
CASES = [
    (constraints.positive, [0.5, 0.0, -1.0, np.nan], [True, False, False, False]),
    (constraints.nonnegative, [0.5, 0.0, -1.0], [True, True, False]),
    (constraints.less_than(2.0), [1.0, 2.0], [True, False]),
    (constraints.greater_than_eq(2.0), [1.0, 2.0], [False, True]),
    (constraints.unit_interval, [0.0, 0.5, 1.0, 1.5], [True, True, True, False]),
    (constraints.half_open_interval(0.0, 1.0), [0.0, 1.0], [True, False]),
    (constraints.integer_interval(1, 3), [1.0, 2.5, 3.0, 4.0], [True, False, True, False]),
    (constraints.nonnegative_integer, [0.0, 1.5, -1.0], [True, False, False]),
    (constraints.positive_integer, [0.0, 1.0], [False, True]),
    (constraints.boolean, [0.0, 1.0, 0.5], [True, True, False]),
    (constraints.real, [1.0, np.inf, np.nan], [True, True, False]),
    (constraints.real_vector, [[1.0, 2.0], [1.0, np.nan]], [True, False]),
    (constraints.one_hot, [[0.0, 1.0], [1.0, 1.0], [0.5, 0.5]], [True, False, False]),
    (constraints.simplex, [[0.25, 0.75], [0.5, 0.6], [-0.5, 1.5]], [True, False, False]),
    (constraints.symmetric, [SPD, [[1.0, 2.0], [0.0, 1.0]]], [True, False]),
    (constraints.square, [[[1.0, 2.0]]], [False]),
    (constraints.lower_triangular, [[[1.0, 0.0], [2.0, -1.0]], SPD], [True, False]),
    (constraints.lower_cholesky, [[[1.0, 0.0], [2.0, 1.0]], [[1.0, 0.0], [2.0, -1.0]]], [True, False]),
    (constraints.positive_definite, [SPD, INDEFINITE, [[1.0, 2.0], [0.0, 1.0]]], [True, False, False]),
    (constraints.positive_semidefinite, [SPD, INDEFINITE, [[1.0, 1.0], [1.0, 1.0]]], [True, False, True]),
]


@pytest.mark.parametrize(("constraint", "values", "valid"), CASES)
def test_values_are_told_apart(constraint, values, valid):
    found = constraint.check(ampkit.tensor(values, dtype=ampkit.float64))
    assert found.dtype == ampkit.bool
    assert found.tolist() == valid


def test_a_constraint_tells_how_many_axes_are_a_value_and_whether_values_are_integers():
    assert (constraints.simplex.event_dim, constraints.positive_definite.event_dim) == (1, 2)
    assert constraints.boolean.is_discrete
    assert not constraints.positive.is_discrete

"""lstsq: what it gives beside the solution is off the tape, and bad tolerances and orders are one line."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import linalg
from ampkit.base.errors import ArgumentError, DTypeError


def test_singular_values_have_no_gradient_and_the_solution_has():
    drawn = np.random.default_rng(0)
    a, b = (ampkit.tensor(drawn.normal(size=shape), requires_grad=True) for shape in ((3, 3), (3, 2)))
    found = linalg.lstsq(a, b, driver="gelsd")
    assert found.solution.requires_grad and not found.singular_values.requires_grad
    np.testing.assert_allclose(found.singular_values.numpy(), np.linalg.svd(a.detach().numpy())[1])


def test_tolerances_and_orders_of_other_kinds_are_refused():
    matrix = ampkit.ones(3, 3)
    with pytest.raises(DTypeError, match="matrix_rank: needs"):
        linalg.matrix_rank(matrix, rtol=ampkit.ones(1).to(ampkit.float8_e4m3fn))
    with pytest.raises(ArgumentError, match="matrix_norm: needs ord"):
        linalg.cond(matrix, p={})
    with pytest.raises(ArgumentError, match="matrix_norm: needs ord"):
        linalg.cond(matrix, p=np.zeros((0, 3)))

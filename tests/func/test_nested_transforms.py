"""Transforms of transforms of every op, in float64: `jvp(grad)` and `vmap(jvp)`, and Jacobians of both modes."""

from __future__ import annotations

import numpy as np
import pytest
from func.each_op import DIFFERENTIABLE, has_first_alone, numbers, of_floats, total

import ampkit
from ampkit import func, ops
from ampkit.base.errors import StateError

STEP = 1e-6


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=repr)
def test_the_tangent_of_a_gradient_is_that_of_finite_differences(case):
    function, primals, along = of_floats(case)
    places = tuple(range(len(primals)))
    gradient = func.grad(total(function), places)
    if has_first_alone(case):
        with pytest.raises(StateError, match="first derivative"):
            func.jvp(gradient, primals, along)
        return
    found = func.jvp(gradient, primals, along)[1]
    ends = [gradient(*[x + s * v for x, v in zip(primals, along, strict=True)]) for s in (STEP, -STEP)]
    for tangent, ahead, behind in zip(found, *ends, strict=True):
        assert tangent.dtype == ampkit.float64
        wanted = (ahead.numpy() - behind.numpy()) / (2 * STEP)
        largest = max(1.0, np.abs(wanted).max(initial=0.0))
        np.testing.assert_allclose(tangent.numpy(), wanted, rtol=0, atol=2e-5 * largest)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=repr)
def test_jacobians_of_both_modes_agree(case):
    function, primals, _ = of_floats(case)
    for place in range(len(primals)):

        def alone(x, place=place):
            return function(*primals[:place], x, *primals[place + 1 :])

        reverse = func.jacrev(alone)(primals[place])
        for one, other in zip(func.jacfwd(alone)(primals[place]), reverse, strict=True):
            assert one.dtype == other.dtype == ampkit.float64
            largest = max(1.0, np.abs(other.numpy()).max(initial=0.0))
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=1e-9 * largest)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=repr)
def test_tangents_of_samples_are_those_of_a_loop(case):
    function, primals, _ = of_floats(case)
    stacked = tuple(ops.stack([x, x * 0.9375]) for x in primals)
    along = tuple(numbers(*x.shape, seed=5 + i) for i, x in enumerate(stacked))

    def tangents(*pairs):
        half = len(pairs) // 2
        return func.jvp(function, pairs[:half], pairs[half:])[1]

    rows = [tangents(*[x[i] for x in (*stacked, *along)]) for i in range(2)]
    try:
        found = func.vmap(tangents, randomness="same")(*stacked, *along)
    except StateError as error:
        assert has_first_alone(case) and "first derivative" in str(error)  # noqa: PT017 - or else it passes
        return
    for one, column in zip(found, zip(*rows, strict=True), strict=True):
        wanted = ops.stack(list(column)).numpy()
        largest = max(1.0, np.abs(wanted).max(initial=0.0))
        np.testing.assert_allclose(one.numpy(), wanted, rtol=0, atol=1e-9 * largest)

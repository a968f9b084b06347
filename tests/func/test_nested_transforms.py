"""Transforms of transforms of every op, in float64: `jvp(grad)` and `vmap(jvp)`, and Jacobians of both modes."""

from __future__ import annotations

import numpy as np
import pytest
from func.test_derivatives import ONE_OF_EACH, is_of_floats, numbers, of_floats

import ampkit
from ampkit import func, ops
from ampkit.base.errors import AmpkitError, StateError

SMOOTH = [case for case in ONE_OF_EACH if case.smooth and is_of_floats(case)]
STEP = 1e-6

# The backward of these is NumPy code that the tape does not record: they have first derivatives alone.
FIRST = {
    "linalg_eigh", "linalg_eigvalsh", "linalg_svd", "linalg_svdvals", "linalg_qr", "linalg_lu", "linalg_matrix_norm",
    "gammaincc",
}  # fmt: skip
MOST = 64  # elements of an input whose Jacobians are compared


def total(function):
    def of(*values):
        return sum((ops.cos(out) * out).sum() for out in function(*values))

    return of


@pytest.mark.parametrize("case", SMOOTH, ids=lambda case: case.name)
def test_the_tangent_of_a_gradient_is_that_of_finite_differences(case):
    function, primals, along = of_floats(case)
    places = tuple(range(len(primals)))
    gradient = func.grad(total(function), places)
    try:
        gradient(*primals)
    except AmpkitError:  # an op without a backward
        return
    if case.name in FIRST:
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


@pytest.mark.parametrize("case", SMOOTH, ids=lambda case: case.name)
def test_jacobians_of_both_modes_agree(case):
    function, primals, _ = of_floats(case)
    for place in [i for i, x in enumerate(primals) if x.numel() <= MOST]:

        def alone(x, place=place):
            return function(*primals[:place], x, *primals[place + 1 :])

        try:
            reverse = func.jacrev(alone)(primals[place])
        except AmpkitError:
            with pytest.raises(AmpkitError):
                func.jacfwd(alone)(primals[place])
            continue
        for one, other in zip(func.jacfwd(alone)(primals[place]), reverse, strict=True):
            assert one.dtype == other.dtype == ampkit.float64
            largest = max(1.0, np.abs(other.numpy()).max(initial=0.0))
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=1e-9 * largest)


@pytest.mark.parametrize("case", SMOOTH, ids=lambda case: case.name)
def test_tangents_of_samples_are_those_of_a_loop(case):
    function, primals, _ = of_floats(case)
    if not function(*primals):  # comparisons and their like
        return
    stacked = tuple(ops.stack([x, x * 0.9375]) for x in primals)
    along = tuple(numbers(*x.shape, seed=5 + i) for i, x in enumerate(stacked))

    def tangents(*pairs):
        half = len(pairs) // 2
        return func.jvp(function, pairs[:half], pairs[half:])[1]

    rows = [tangents(*[x[i] for x in (*stacked, *along)]) for i in range(2)]
    try:
        found = func.vmap(tangents, randomness="same")(*stacked, *along)
    except StateError as error:
        assert case.name in FIRST and "first derivative" in str(error)  # noqa: PT017 - or else it passes
        return
    for one, column in zip(found, zip(*rows, strict=True), strict=True):
        wanted = ops.stack(list(column)).numpy()
        largest = max(1.0, np.abs(wanted).max(initial=0.0))
        np.testing.assert_allclose(one.numpy(), wanted, rtol=0, atol=1e-9 * largest)

"""Forward mode and `vmap` of factorizations of matrices, against finite differences in float64 and single calls."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import func, linalg, ops
from ampkit.base.errors import RangeError

STEP = 1e-6
SQUARE, TALL, WIDE, MANY = (4, 4), (5, 3), (3, 5), (2, 3, 3)


def symmetric(function):
    return lambda x: function(x + x.mT)


FACTORS = {
    "eigh": (symmetric(lambda x: tuple(linalg.eigh(x))), (SQUARE, MANY)),
    "svd": (lambda x: tuple(linalg.svd(x, full_matrices=False)), (SQUARE, TALL, WIDE, MANY)),
    "singular vectors alone": (lambda x: linalg.svd(x, full_matrices=False).U, (SQUARE, TALL)),
    "singular values alone": (linalg.svdvals, (TALL, WIDE)),
    "qr": (lambda x: tuple(linalg.qr(x)), (SQUARE, TALL, WIDE, MANY)),
    "orthonormal columns alone": (lambda x: linalg.qr(x).Q, (TALL,)),
    "lu": (lambda x: linalg.lu_factor(x)[0], (SQUARE, TALL, WIDE, MANY)),
    "P, L and U": (lambda x: linalg.lu(x)[1:], (SQUARE, TALL)),
    "nuclear norm": (lambda x: linalg.matrix_norm(x, "nuc"), (TALL, MANY)),
    "condition": (linalg.cond, (SQUARE,)),
    "least squares": (lambda x: linalg.lstsq(x, ops.ones_like(x), driver="gels")[:2], (TALL,)),
}
CASES = [(name, shape) for name, (_, shapes) in FACTORS.items() for shape in shapes]


def numbers(shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def several(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_tangents_are_those_of_finite_differences(name, shape):
    function = FACTORS[name][0]
    x, t = numbers(shape), numbers(shape, 1)
    found = func.jvp(function, (ampkit.tensor(x, dtype=ampkit.float64),), (ampkit.tensor(t, dtype=ampkit.float64),))
    ahead, behind = (several(function(ampkit.tensor(x + s * t, dtype=ampkit.float64))) for s in (STEP, -STEP))
    for tangent, a, b in zip(several(found[1]), ahead, behind, strict=True):
        wanted = (a.numpy() - b.numpy()) / (2 * STEP)
        np.testing.assert_allclose(tangent.numpy(), wanted, rtol=1e-6, atol=1e-6 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize(("name", "shape"), [case for case in CASES if len(case[1]) == 2])
def test_jacobians_of_both_modes_agree(name, shape):
    function, x = FACTORS[name][0], ampkit.tensor(numbers(shape), dtype=ampkit.float64)
    pairs = zip(several(func.jacfwd(function)(x)), several(func.jacrev(function)(x)), strict=True)
    for forward, reverse in pairs:
        np.testing.assert_allclose(forward.numpy(), reverse.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "shape"), [case for case in CASES if len(case[1]) == 2])
def test_samples_have_factors_and_gradients_of_their_own(name, shape):
    function, x = FACTORS[name][0], ampkit.tensor(numbers((3, *shape)), dtype=ampkit.float64)

    def total(row):
        return sum((out * ops.cos(out)).sum() for out in several(function(row)))

    for mapped in (function, func.grad(total)):
        for found, wanted in zip(
            several(func.vmap(mapped)(x)), zip(*[several(mapped(row)) for row in x], strict=True), strict=True
        ):
            np.testing.assert_allclose(found.numpy(), ops.stack(list(wanted)).numpy(), rtol=1e-9, atol=1e-9)


def test_repeated_eigenvalues_have_tangents_that_keep_them():
    x, t = ops.eye(3, dtype=ampkit.float64), ops.diag(ampkit.tensor([1.0, 2.0, 3.0], dtype=ampkit.float64))
    values, vectors = func.jvp(lambda a: tuple(linalg.eigh(a)), (x,), (t,))[1]
    assert values.tolist() == [1, 2, 3]
    assert vectors.tolist() == [[0] * 3] * 3


def test_pivots_out_of_range_are_refused():
    with pytest.raises(RangeError, match="pivots from 1 to 2"):
        ops.lu_unpack(ops.eye(2), ampkit.tensor([1, 3], dtype=ampkit.int32))


def test_of_repeated_indices_the_last_tangent_counts():
    index = ampkit.tensor([2, 0, 2])

    def function(x, src):
        return ops.scatter(x, 0, index, src)

    given = [ampkit.tensor(numbers((3,), seed), dtype=ampkit.float64) for seed in range(4)]
    for moved in ((True, True), (True, False), (False, True)):
        held = [x for x, yes in zip(given[:2], moved, strict=True) if not yes]
        free = tuple(x for x, yes in zip(given[:2], moved, strict=True) if yes)
        tangents = tuple(t for t, yes in zip(given[2:], moved, strict=True) if yes)

        def of(*values, held=held, moved=moved):
            rest, fixed = iter(values), iter(held)
            return function(*[next(rest) if yes else next(fixed) for yes in moved])

        found = func.jvp(of, free, tangents)[1].numpy()
        x, src = (t.numpy() if yes else np.zeros(3) for t, yes in zip(given[2:], moved, strict=True))
        np.testing.assert_array_equal(found, [src[1], x[1], src[2]])

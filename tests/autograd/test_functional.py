"""Jacobians, Hessians and their products with vectors: against formulas and central differences in float64."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.autograd import functional
from ampkit.base.errors import ArgumentError, DTypeError, StateError


def f64(values):
    return ampkit.tensor(np.asarray(values), dtype=ampkit.float64)


def function(x, y):
    return (x.sin() * y).sum(1), x.exp().sum() * y[0, :2]


X, Y = np.sin(np.arange(6.0)).reshape(2, 3), np.cos(np.arange(6.0)).reshape(2, 3)


def differences(out, place):
    """The Jacobian of an output with respect to one input, by central differences."""
    given, columns = [X, Y], []
    for i in range(given[place].size):
        sides = []
        for step in (1e-6, -1e-6):
            moved = [a.copy() for a in given]
            moved[place].reshape(-1)[i] += step
            sides.append(function(*map(f64, moved))[out].numpy(force=True))
        columns.append((sides[0] - sides[1]) / 2e-6)
    return np.stack(columns, -1).reshape(*columns[0].shape, *given[place].shape)


def near(found, expected):
    np.testing.assert_allclose(found.detach().numpy(force=True), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_jacobian_has_a_tensor_for_each_output_and_input(create_graph):
    inputs = f64(X).requires_grad_(), f64(Y).requires_grad_()
    found = functional.jacobian(function, inputs, create_graph=create_graph)
    assert len(found) == 2
    for out, row in enumerate(found):
        for place, each in enumerate(row):
            assert each.requires_grad == create_graph
            near(each, differences(out, place))
    if create_graph:
        sum(each.sum() for row in found for each in row).backward()
        expected = -np.sin(X) * Y + np.cos(X) + np.exp(X) * Y[0, :2].sum() + 2 * np.exp(X)
        near(inputs[0].grad, expected)


def test_products_with_vectors_are_those_of_the_jacobian():
    (a, b), (c, d) = [[differences(out, place) for place in (0, 1)] for out in (0, 1)]
    v, w = (f64([0.5, -1.5]), f64([2.0, 0.25])), (f64(X + 1), f64(Y - 2))
    outs, (left, right) = functional.vjp(function, (f64(X), f64(Y)), v)
    near(outs[0], (np.sin(X) * Y).sum(1))
    one, two = v[0].numpy(), v[1].numpy()
    near(left, np.tensordot(one, a, 1) + np.tensordot(two, c, 1))
    near(right, np.tensordot(one, b, 1) + np.tensordot(two, d, 1))
    _, (first, second) = functional.jvp(function, (f64(X), f64(Y)), w)
    near(first, np.tensordot(a, w[0].numpy(), 2) + np.tensordot(b, w[1].numpy(), 2))
    near(second, np.tensordot(c, w[0].numpy(), 2) + np.tensordot(d, w[1].numpy(), 2))


def test_a_hessian_and_its_products():
    x = f64([0.5, -1.0, 2.0])
    cubic = lambda x: (x**3).sum() + x[0] * x[1]  # noqa: E731
    expected = np.diag(6 * x.numpy())
    expected[0, 1] = expected[1, 0] = 1
    near(functional.hessian(cubic, x), expected)
    v = f64([1.0, 2.0, -0.5])
    for product in (functional.hvp, functional.vhp):
        out, found = product(cubic, x, v)
        near(out, cubic(x).item())
        near(found, expected @ v.numpy())
    rows = functional.hessian(lambda x, y: (x * y).sum(), (x, v))
    near(rows[0][1], np.eye(3))
    near(rows[1][1], np.zeros((3, 3)))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda x: functional.vjp(ops.exp, (x, 2)), DTypeError, "vjp: needs inputs as a Tensor or a tuple"),
        (lambda x: functional.jvp(lambda x: (x, "b"), x, x), DTypeError, "the outputs of the function as a Tensor"),
        (lambda x: functional.vjp(ops.exp, x), StateError, "vjp: needs v, unless it is of one element, got None"),
        (lambda x: functional.vjp(ops.exp, x, x[:2]), StateError, r"v of the shapes \[\[3\]\], got \[\[2\]\]"),
        (lambda x: functional.hessian(ops.exp, x), StateError, r"an output of one element, got shape \[3\]"),
        (lambda x: functional.hvp(lambda x: (x.sum(), x), x, x), StateError, "that returns one Tensor, got a tuple"),
        (lambda x: functional.jacobian(lambda x: f64([1.0]), x, strict=True), StateError, "that depend on the inputs"),
        (lambda x: functional.jacobian(ops.exp, x, strategy="both"), ArgumentError, "needs strategy"),
        (lambda x: functional.jacobian(ops.exp, x, strategy="forward-mode"), NotImplementedError, "vectorize=True"),
        (lambda x: functional.hessian(lambda x: x.sum(), x, strict=True), StateError, "the gradients of the function"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, said):
    with pytest.raises(error, match=said):
        call(f64([1.0, 2.0, 3.0]))


def test_what_depends_on_nothing_has_zeros():
    x = f64([1.0, 2.0])
    near(functional.jacobian(lambda x: f64([3.0]), x), np.zeros((1, 2)))
    near(functional.jvp(lambda x: f64([3.0]), x, x)[1], [0.0])
    assert functional.jacobian(lambda x: x[:0], x).shape == (0, 2)

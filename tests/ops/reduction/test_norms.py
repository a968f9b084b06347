"""Norms and distances: hand-worked values, orders, one rounding, wrong arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, autocast, ops, tensor
from ampkit.base.dtypes import float16, float32
from ampkit.base.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError, StateError
from ampkit.core.autograd.tape import grad
from ampkit.ops.linalg import distances

MATRIX = [[3.0, 0.0], [4.0, 5.0]]  # singular values sqrt(45) and sqrt(5), as its squares add to 50 and its area is 15


@pytest.mark.parametrize(
    ("ord", "expected"),
    [
        ("fro", math.sqrt(50)),
        (1, 7),
        (-1, 5),
        (math.inf, 9),
        (-math.inf, 3),
        (2, math.sqrt(45)),
        (-2, math.sqrt(5)),
        ("nuc", math.sqrt(45) + math.sqrt(5)),
    ],
)
def test_a_norm_of_a_matrix_is_the_one_worked_by_hand(ord, expected):
    for function in (ops.linalg_matrix_norm, ops.linalg_norm, ampkit.linalg.matrix_norm):
        assert function(tensor(MATRIX), ord).item() == pytest.approx(expected, rel=1e-6)
    stacked = ops.linalg_matrix_norm(tensor([MATRIX, MATRIX]), ord, (0, -1), keepdim=True)
    assert stacked.shape == (1, 2, 1)


def test_the_gradient_of_the_sum_of_singular_values_of_a_symmetric_matrix_is_the_unit_matrix():
    x = tensor([[2.0, 1.0], [1.0, 2.0]], requires_grad=True)
    np.testing.assert_allclose(grad(x.norm("nuc"), x)[0].numpy(), np.eye(2), atol=1e-6)
    with pytest.raises(StateError, match="linalg_matrix_norm: needs a first derivative"):
        grad(ops.linalg_matrix_norm(x, 2), x, create_graph=True)


@pytest.mark.cpu
def test_what_a_norm_cannot_do_is_told_in_a_line():
    x = tensor(MATRIX)
    for call, error in (
        (lambda: ops.linalg_matrix_norm(x, 3), ArgumentError),
        (lambda: ops.linalg_matrix_norm(x, dim=0), ShapeError),
        (lambda: ops.linalg_norm(tensor([[MATRIX]]), 2), ShapeError),
        (lambda: ops.linalg_matrix_norm(x * math.nan, "nuc"), NonFiniteError),
        (lambda: ops.norm(ops.zeros(0), math.inf), ShapeError),
        (lambda: ops.norm(x, "x"), DTypeError),
        (lambda: ops.renorm(x, 0, 0, 1.0), ArgumentError),
        (lambda: ops.renorm(tensor([1.0]), 2, 0, 1.0), ShapeError),
        (lambda: ops.cdist(x, ops.zeros(2, 3)), ShapeError),
        (lambda: ops.cdist(x, x, -1.0), ArgumentError),
        (lambda: ops.pdist(tensor([1.0])), ShapeError),
    ):
        with pytest.raises(error, match=r"^[a-z_]+: needs .+, got "):
            call()


def test_slices_above_the_bound_shrink_to_it_and_others_stay():
    x = tensor([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(ops.renorm(x, 2, 0, 1.0).numpy(), [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)
    assert ops.renorm(x, 1, -1, 0.0).tolist() == [[0, 0], [0, 0]]


def test_distances_are_those_of_pythagoras_and_close_points_keep_their_digits():
    a, b = tensor([[0.0, 0.0], [3.0, 4.0]]), tensor([[0.0, 0.0], [6.0, 8.0], [3.0, 4.0]])
    assert ops.cdist(a, b).tolist() == [[0, 10, 5], [5, 5, 0]]
    assert ops.cdist(a, b, 0).tolist() == [[0, 2, 2], [2, 2, 0]]
    assert ops.pdist(b).tolist() == [10, 5, 5]
    assert ops.dist(a, b[1]).item() == pytest.approx(math.sqrt(125))
    far = tensor([[4096.0, 4096.0]])
    assert ops.cdist(far, far + tensor([[0.5, 0.0]])).item() == 0.5  # by a product it would be 0
    x = a.detach().requires_grad_()
    assert np.isfinite(grad(ops.cdist(x, x).sum(), x)[0].numpy()).all()


def test_many_rows_are_taken_in_parts_that_fit(monkeypatch):
    drawn = np.random.default_rng(0).normal
    x, y = (tensor(drawn(size=shape), dtype="float64", requires_grad=True) for shape in ((2, 7, 3), (5, 3)))
    seed = tensor(drawn(size=(2, 7, 5)), dtype="float64")
    whole = [ops.cdist(x, y), *grad(ops.cdist(x, y), (x, y), seed)]
    monkeypatch.setattr(distances, "_MAX_DIFFERENCES", 64)
    for got, want in zip([ops.cdist(x, y), *grad(ops.cdist(x, y), (x, y), seed)], whole, strict=True):
        np.testing.assert_allclose(got.numpy(force=True), want.numpy(force=True), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["cdist", "dist", "pdist", "renorm", "linalg_matrix_norm"])
def test_in_autocast_distances_and_norms_are_float32_from_the_difference_on(name):
    x = tensor([[2048.0, 1.0], [1.0, 0.5]], dtype=float16)
    more = {"cdist": (x,), "dist": (x.T,), "renorm": (2, 0, 1.0), "linalg_matrix_norm": ("nuc",)}.get(name, ())
    with autocast(dtype="float16"):
        inside = getattr(ops, name)(x, *more)
    assert inside.dtype == float32
    wide = [t.float() if isinstance(t, Tensor) else t for t in more]
    np.testing.assert_allclose(inside.numpy(), getattr(ops, name)(x.float(), *wide).numpy(), rtol=1e-6)
    assert getattr(ops, name)(x, *more).dtype == float16


def test_the_count_of_differences_with_nan_is_nan_and_of_equal_infinities_too():
    x = tensor([[1.0, math.nan], [2.0, 3.0], [math.inf, 3.0], [math.inf, 3.0]])
    assert ops.pdist(x, 0).tolist() == pytest.approx([math.nan] * 3 + [1, 1, math.nan], nan_ok=True)
    assert ops.cdist(x, x, 0)[1].tolist() == pytest.approx([math.nan, 0, 1, 1], nan_ok=True)


def test_the_largest_of_no_sums_and_of_no_singular_values_is_0():
    for shape, ord in (((0, 0), 1), ((0, 3), 1), ((3, 0), math.inf), ((2, 0), 2), ((0, 0), "nuc")):
        x = Tensor(np.ones((2, *shape), np.float32))
        assert ops.linalg_matrix_norm(x, ord).tolist() == [0.0, 0.0]
    with pytest.raises(ShapeError, match="at least one singular value"):
        ops.linalg_matrix_norm(Tensor(np.ones((2, 0), np.float32)), -2)


def test_a_number_is_normalized_to_its_sign_in_any_norm():
    for p in (2, 1, -0.5, math.inf, -math.inf):
        x = tensor(-3.0, requires_grad=True)
        out = ops.normalize(x, p, 0)
        out.backward()
        assert (out.item(), x.grad.item()) == (-1, 0)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_empty_slices_are_renormalized_to_themselves(p):
    x = ampkit.zeros(2, 0, 3, requires_grad=True)
    out = ops.renorm(x, p, -1, 0.0)
    out.sum().backward()
    assert out.shape == x.grad.shape == (2, 0, 3)

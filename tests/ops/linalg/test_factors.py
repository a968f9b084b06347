"""LU factors, least squares, factors of low rank, and solvers that report failures as numbers."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import linalg, ops

RANDOM = np.random.default_rng(5)
SQUARE, RIGHT = RANDOM.normal(size=(2, 4, 4)), RANDOM.normal(size=(2, 4, 3))


def tensor(values):
    return ampkit.tensor(values, dtype=ampkit.float64)


def close(found, expected, tolerance=1e-9):
    np.testing.assert_allclose(found.detach().numpy(), expected, tolerance, tolerance)


@pytest.mark.parametrize("shape", [(2, 4, 4), (5, 3), (3, 5), (0, 2, 2)], ids=str)
def test_lu_factors_multiply_to_the_matrix_with_rows_in_another_order(shape):
    x = RANDOM.normal(size=shape)
    places, low, up = linalg.lu(tensor(x))
    close(places @ low @ up, x)
    assert np.array_equal(low.numpy(), np.tril(low.numpy())) and np.array_equal(up.numpy(), np.triu(up.numpy()))
    assert np.abs(low.numpy()).max(initial=0) <= 1
    lu, pivots = linalg.lu_factor(tensor(x))
    assert pivots.dtype == ampkit.int32 and (pivots.numpy() > 0).all()
    for found, expected in zip(ops.lu_unpack(lu, pivots), (places, low, up), strict=True):
        close(found, expected.numpy())


@pytest.mark.parametrize("adjoint", [False, True])
def test_lu_solve_solves_from_either_side(adjoint):
    factors = linalg.lu_factor(tensor(SQUARE))
    matrix = np.swapaxes(SQUARE, -1, -2) if adjoint else SQUARE
    close(tensor(matrix) @ linalg.lu_solve(*factors, tensor(RIGHT), adjoint=adjoint), RIGHT)
    found = linalg.lu_solve(*factors, tensor(RIGHT).mT, left=False, adjoint=adjoint)
    close(found @ tensor(matrix), np.swapaxes(RIGHT, -1, -2))
    close(ops.lu_solve(tensor(RIGHT), *factors), np.linalg.solve(SQUARE, RIGHT))


def test_failures_are_numbers_and_the_other_matrices_keep_their_answers_and_gradients():
    definite = SQUARE[0] @ SQUARE[0].T
    given = tensor(np.stack([definite, np.diag([1.0, 2.0, -1.0, 3.0])])).requires_grad_()
    low, info = linalg.cholesky_ex(given)
    assert info.tolist() == [0, 3] and low[1].isnan().any()
    close(low[0] @ low[0].T, definite)
    low[0].sum().backward()
    assert given.grad.isfinite().all()
    singular = tensor(np.stack([SQUARE[0], np.diag([1.0, 0.0, 0.0, 3.0])]))
    inverse, info = linalg.inv_ex(singular)
    assert info.tolist() == [0, 2]
    close(inverse[0] @ singular[0], np.eye(4))
    found, info = linalg.solve_ex(singular, tensor(RIGHT))
    assert info.tolist() == [0, 2]
    close(found[0], np.linalg.solve(SQUARE[0], RIGHT[0]))
    assert linalg.lu_factor_ex(singular).info.tolist() == [0, 2]
    for call in (linalg.cholesky_ex, linalg.inv_ex, linalg.lu_factor_ex):
        with pytest.raises(ampkit.ArgumentError, match="_ex: needs matrices that can be factored, got info"):
            call(given.detach() if call is linalg.cholesky_ex else singular, check_errors=True)
    assert linalg.inv_ex(tensor(SQUARE)).info.tolist() == [0, 0]


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 3, 5)], ids=str)
def test_least_squares_are_numpys(shape):
    a, b = RANDOM.normal(size=shape), RANDOM.normal(size=(2, shape[1], 2))
    found = linalg.lstsq(tensor(a), tensor(b), driver="gelsd")
    for i in range(2):
        x, residuals, rank, values = np.linalg.lstsq(a[i], b[i], rcond=None)
        close(found.solution[i], x)
        close(found.singular_values[i], values)
        assert found.rank[i].item() == rank
        if residuals.size:
            close(found.residuals[i], residuals)
    close(linalg.lstsq(tensor(a), tensor(b[..., 0])).solution, found.solution[..., 0].numpy())


@pytest.mark.parametrize("p", [None, 1, 2, -2, "fro", "nuc", np.inf], ids=str)
def test_condition_numbers_are_numpys(p):
    close(linalg.cond(tensor(SQUARE), p), [np.linalg.cond(x, p) for x in SQUARE])


def test_inverses_and_systems_of_tensors_are_numpys():
    a, b = RANDOM.normal(size=(2, 3, 6)), RANDOM.normal(size=(2, 3))
    close(linalg.tensorinv(tensor(a)), np.linalg.tensorinv(a), 1e-7)
    close(linalg.tensorsolve(tensor(a), tensor(b)), np.linalg.tensorsolve(a, b), 1e-7)
    moved = np.moveaxis(a, -1, 0)
    close(linalg.tensorsolve(tensor(moved), tensor(b), dims=(0,)), np.linalg.tensorsolve(a, b), 1e-7)


def test_factors_by_their_older_names():
    low = np.linalg.cholesky(SQUARE @ np.swapaxes(SQUARE, -1, -2))
    close(ops.cholesky_inverse(tensor(low)), np.linalg.inv(low @ np.swapaxes(low, -1, -2)), 1e-6)
    found = ops.triangular_solve(tensor(RIGHT), tensor(SQUARE), upper=False, transpose=True)
    close(found.solution, np.linalg.solve(np.swapaxes(np.tril(SQUARE), -1, -2), RIGHT))


@pytest.mark.parametrize("shape", [(2, 30, 20), (2, 20, 30)], ids=str)
def test_random_vectors_find_the_factors_of_a_matrix_of_low_rank(shape):
    a = RANDOM.normal(size=(*shape[:-1], 4)) @ RANDOM.normal(size=(2, 4, shape[-1]))
    given = tensor(a).requires_grad_()
    u, s, v = ops.svd_lowrank(given, 4)
    close((u * s[..., None, :]) @ v.mT, a)
    close(s, np.linalg.svd(a, compute_uv=False)[..., :4])
    s.sum().backward()
    left, _, right = np.linalg.svd(a)  # d s_i / dA = u_i v_i^T
    close(given.grad, left[..., :4] @ right[..., :4, :], 1e-7)
    _, s, v = ops.pca_lowrank(tensor(a), 4)
    close(s, np.linalg.svd(a - a.mean(-2, keepdims=True), compute_uv=False)[..., :4])
    assert ops.pca_lowrank(tensor(a))[2].shape == (2, shape[-1], 6)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: ops.svd_lowrank(tensor(SQUARE), 5), "svd_lowrank: needs q from 0 to 4, got 5"),
        (lambda: linalg.lu_factor(tensor(SQUARE), pivot=False), "lu_factor: needs pivot=True"),
        (lambda: linalg.lstsq(tensor(SQUARE), tensor(RIGHT), driver="x"), "lstsq: needs driver gels"),
        (lambda: linalg.tensorinv(tensor(SQUARE), 0), "tensorinv: needs ind from 1 to 2"),
        (lambda: linalg.lu(tensor([1.0])), "lu: needs matrices"),
    ],
    ids=range(5),
)
def test_what_is_wrong_is_said_in_one_line(call, line):
    with pytest.raises(ampkit.AmpkitError, match=line):
        call()

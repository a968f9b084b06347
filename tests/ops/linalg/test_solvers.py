"""Inverses, systems of equations and factors of matrices: what defines them, NumPy's answers, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ampkit
from ampkit import linalg, nn, ops, optim, tensor
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ampkit.testing import assert_close, gradcheck, gradgradcheck


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def definite(size):
    x = drawn(size, size)
    return x @ x.T + np.eye(size)


def test_an_inverse_and_a_solution_undo_the_product():
    a, b = tensor(drawn(2, 4, 4)), tensor(drawn(4, 3))
    assert_close(ops.inverse(a) @ a, np.broadcast_to(np.eye(4), (2, 4, 4)), (1e-9, 1e-9))
    assert_close(a @ linalg.solve(a, b), np.broadcast_to(b.numpy(), (2, 4, 3)), (1e-9, 1e-9))
    assert_close(linalg.solve(a, tensor(drawn(2, 3, 4)), left=False) @ a, drawn(2, 3, 4), (1e-9, 1e-9))
    assert linalg.solve(a, tensor(drawn(2, 4))).shape == (2, 4)
    assert_close(ops.matrix_power(a, -2), np.linalg.matrix_power(drawn(2, 4, 4), -2), (1e-9, 1e-9))


def test_determinants_have_signs_and_logarithms():
    a = tensor([[[2.0, 0.0], [0.0, 3.0]], [[0.0, 1.0], [2.0, 0.0]], [[1.0, 2.0], [2.0, 4.0]]])
    assert ops.det(a).tolist() == [6.0, -2.0, 0.0]
    sign, size = a.slogdet()
    assert sign.tolist() == [1.0, -1.0, 0.0]
    assert_close(size, np.array([math.log(6), math.log(2), -math.inf], np.float32))
    found = ops.logdet(a).tolist()
    assert (math.isnan(found[1]), found[2]) == (True, -math.inf)
    assert ops.slogdet(a.half()).logabsdet.dtype == ops.slogdet(a.half()).sign.dtype == ampkit.float16


def test_triangles_are_all_that_is_read_of_a_triangular_system():
    a, b = drawn(3, 3), drawn(3, 2)
    x = linalg.solve_triangular(tensor(a), tensor(b), upper=False)
    assert_close(x, np.linalg.solve(np.tril(a), b), (1e-9, 1e-9))
    x = linalg.solve_triangular(tensor(a), tensor(b), upper=True, unitriangular=True)
    assert_close(x, np.linalg.solve(np.triu(a, 1) + np.eye(3), b), (1e-9, 1e-9))


@pytest.mark.parametrize("upper", [False, True])
def test_choleskys_factor_squared_is_the_matrix(upper):
    a = definite(4)
    factor = linalg.cholesky(tensor(a), upper=upper)
    lower = factor.mT if upper else factor
    assert_close(lower, np.linalg.cholesky(a), (1e-9, 1e-9))
    assert_close(ops.cholesky_solve(tensor(np.eye(4)), factor, upper), np.linalg.inv(a), (1e-9, 1e-9))


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 3)])
def test_singular_values_and_their_vectors_make_the_matrix_again(shape):
    a = drawn(*shape)
    u, s, vh = linalg.svd(tensor(a), full_matrices=False)
    assert_close(u * s.unsqueeze(-2) @ vh, a, (1e-9, 1e-9))
    assert_close(linalg.svdvals(tensor(a)), np.linalg.svd(a, compute_uv=False), (1e-9, 1e-9))
    full = linalg.svd(tensor(a))
    assert (full.U.shape[-1], full.Vh.shape[-2]) == shape[-2:]
    assert_close(linalg.pinv(tensor(a)), np.linalg.pinv(a), (1e-9, 1e-9))


def test_the_gradient_of_what_the_singular_vectors_make_again_is_that_of_the_matrix():
    a = tensor(drawn(4, 3), requires_grad=True)
    u, s, vh = linalg.svd(a, full_matrices=False)
    seed = drawn(4, 3, seed=1)
    ((u * s) @ vh * tensor(seed)).sum().backward()
    assert_close(a.grad, seed, (1e-8, 1e-8))


def test_eigenvectors_make_the_matrix_again():
    a, seed = tensor(definite(4), requires_grad=True), drawn(4, 4)
    values, vectors = linalg.eigh(a)
    assert_close(values, np.linalg.eigvalsh(a.detach().numpy()), (1e-9, 1e-9))
    again = (vectors * values) @ vectors.mT
    assert_close(again, a, (1e-9, 1e-9))
    (again * tensor(seed)).sum().backward()
    assert_close(a.grad, (seed + seed.T) / 2, (1e-8, 1e-8))


def test_where_values_meet_they_have_gradients_and_their_vectors_infinite_ones():
    a = tensor(np.diag([2.0, 2.0, 5.0]), requires_grad=True)
    linalg.eigh(a).eigenvalues.square().sum().backward()
    assert_close(a.grad, 2 * np.diag([2.0, 2.0, 5.0]))
    a.grad = None
    linalg.svd(a).S.square().sum().backward()
    assert_close(a.grad, 2 * np.diag([2.0, 2.0, 5.0]))
    a.grad = None
    (linalg.eigh(a).eigenvectors * tensor(drawn(3, 3))).sum().backward()
    assert not np.isfinite(a.grad.numpy()).all()


def test_qr_gives_orthonormal_columns_and_an_upper_triangle():
    a = drawn(2, 4, 3)
    q, r = linalg.qr(tensor(a))
    assert_close(q @ r, a, (1e-9, 1e-9))
    assert_close(q.mT @ q, np.broadcast_to(np.eye(3), (2, 3, 3)), (1e-9, 1e-9))
    assert np.abs(np.tril(r.numpy(), -1)).max() == 0


Q = np.linalg.qr(drawn(3, 3, seed=3))[0]


@pytest.mark.cpu
@pytest.mark.parametrize("a", [np.eye(2), Q, Q[:, :2], Q[:2], drawn(2, 3, 4)], ids=["one", "q", "high", "wide", "any"])
def test_a_pseudo_inverse_is_differentiated_also_where_singular_values_are_equal(a):
    x = tensor(a, requires_grad=True)
    assert gradcheck(linalg.pinv, x)
    assert gradgradcheck(linalg.pinv, x)


@pytest.mark.cpu
def test_a_pseudo_inverse_of_lower_rank_has_the_gradient_along_matrices_of_that_rank():
    def inverse_of_product(a, b):
        return linalg.pinv(a @ b, rtol=1e-9)

    left, right = np.linalg.qr(drawn(4, 2))[0], np.linalg.qr(drawn(3, 2, seed=1))[0].T.copy()
    assert gradcheck(inverse_of_product, (tensor(left, requires_grad=True), tensor(right, requires_grad=True)))
    assert_close(linalg.pinv(tensor(left @ right)), np.linalg.pinv(left @ right), (1e-9, 1e-9))


def test_bounds_for_small_singular_values_are_one_for_each_matrix():
    a = np.stack([np.diag([4.0, 1.0]), np.diag([4.0, 1.0])])
    bound = tensor(np.array([2.0, 0.5]))
    assert linalg.matrix_rank(tensor(a), atol=bound).tolist() == [1, 2]
    assert linalg.pinv(tensor(a), atol=bound).tolist() == [[[0.25, 0], [0, 0]], [[0.25, 0], [0, 1]]]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3), (0, 2, 3)])
def test_matrices_without_elements_have_a_pseudo_inverse_and_rank_0(shape):
    a = ops.zeros(*shape, requires_grad=True)
    out = linalg.pinv(a)
    assert out.shape == (*shape[:-2], shape[-1], shape[-2])
    out.sum().backward()
    assert a.grad.shape == shape
    assert not linalg.matrix_rank(a).any()


@pytest.mark.cpu
@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 5), (3, 3), (4, 2)])
@pytest.mark.parametrize("part", [0, 1])
def test_both_factors_of_qr_are_differentiated_whatever_the_shape(shape, part):
    assert gradcheck(lambda x: linalg.qr(x)[part], tensor(drawn(*shape), requires_grad=True))


def test_ranks_count_singular_values_that_are_not_small():
    a = tensor(drawn(4, 2) @ drawn(2, 5, seed=1))
    assert linalg.matrix_rank(a).item() == 2
    assert linalg.matrix_rank(a, atol=1e9).item() == 0


def test_other_arguments_by_pytorchs_address():
    x = tensor(drawn(2, 3, 3))
    assert_close(linalg.cross(x, x.flip(0)), np.cross(x.numpy(), x.numpy()[::-1]))
    assert linalg.diagonal(x).shape == (2, 3)
    assert linalg.vander(tensor([2.0, 3.0])).tolist() == [[1.0, 2.0], [1.0, 3.0]]
    assert linalg.vander(tensor([[2.0], [3.0]]), N=3).tolist() == [[[1.0, 2.0, 4.0]], [[1.0, 3.0, 9.0]]]
    assert linalg.vander(tensor(2.0), N=2).tolist() == [[1.0, 2.0]]
    assert linalg.inv(A=x).tolist() == ops.inverse(x).tolist()


def test_in_a_region_matrices_are_solved_in_float32_and_a_layer_of_them_trains():
    weight = nn.Parameter(tensor(definite(3).astype(np.float32)))
    optimizer = optim.SGD([weight], lr=0.05)
    losses = []
    for _ in range(3):
        with ampkit.autocast(dtype=ampkit.bfloat16):
            x = ops.ones(2, 3) @ weight
            assert x.dtype == ampkit.bfloat16
            y = ops.inverse(weight)
            assert y.dtype == ampkit.float32
            loss = y.square().sum() - ops.logdet(weight)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]


ONES = np.ones((2, 2), np.float32)


@pytest.mark.cpu
@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda: ops.inverse(tensor(ONES)), ArgumentError, "inverse: needs matrices with an inverse, got others: singular"),
    (lambda: ops.inverse(ops.ones(2, 3)), ShapeError, r"inverse: needs square matrices \[.., M, M\], got"),
    (lambda: ops.det(tensor([[1, 2], [3, 4]])), DTypeError, "det: needs"),
    (lambda: linalg.solve(tensor(ONES), ops.ones(2)), ArgumentError, "solve: needs matrices with an inverse"),
    (lambda: linalg.solve(tensor(ONES), ops.ones(3, 1)), ShapeError, r"solve: needs B \[.., 2, K\] for A \[2, 2\]"),
    (lambda: linalg.cholesky(tensor(-ONES)), ArgumentError, "cholesky: needs positive definite matrices, got others"),
    (lambda: linalg.eigh(ops.ones(2, 2), "X"), ArgumentError, "eigh: needs UPLO 'L' or 'U', got 'X'"),
    (lambda: linalg.qr(ops.ones(2, 2), "complete"), ArgumentError, "qr: needs mode 'reduced', got 'complete'"),
    (lambda: linalg.svd(ops.ones(2, 3, requires_grad=True)), StateError, "help: full_matrices=False"),
    (lambda: linalg.svdvals(ops.ones(3)), ShapeError, r"svd: needs matrices \[.., M, N\], got shape \(3,\)"),
    (lambda: linalg.svdvals(tensor(ONES * np.nan)), ArgumentError, "svd: needs finite matrices, got inf or NaN"),
    (lambda: linalg.svd(tensor(np.diag([1.0, np.inf]))), ArgumentError, "svd: needs finite matrices, got inf or NaN"),
    (lambda: linalg.pinv(tensor(np.diag([1.0, np.inf]))), ArgumentError, "pinv: needs finite matrices"),
    (lambda: linalg.eigvalsh(tensor(np.diag([1.0, np.nan]))), ArgumentError, "eigh: needs finite matrices"),
    (lambda: ops.det(tensor(ONES, requires_grad=True)).backward(), ArgumentError, "the gradient of det: needs"),
])  # fmt: skip
def test_what_has_no_answer_is_refused_in_one_line(call, error, match):
    with pytest.raises(error, match=match):
        call()

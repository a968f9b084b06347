"""Sparse tensors of chosen elements answer as the dense tensors that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from ops.sparse.test_sparse import DENSE, PLACES, SHAPE, VALUES, close, made, tensor

import ampkit
from ampkit import sparse
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("index", [[2, 0, 0, 1], [1], []])
def test_slices_are_selected_as_often_as_they_are_asked_for(dim, index):
    found = made().index_select(dim, ampkit.tensor(index, dtype=ampkit.int64))
    close(found.to_dense(), np.take(DENSE, index, dim))
    assert tuple(found.shape) == np.take(DENSE, index, dim).shape
    close(
        ampkit.index_select(made(), dim, ampkit.tensor(index, dtype=ampkit.int64)).to_dense(),
        np.take(DENSE, index, dim),
    )


def test_gradients_of_selected_and_multiplied_elements_reach_the_values():
    values = tensor(VALUES, requires_grad=True)
    x = ampkit.sparse_coo_tensor(PLACES, values, SHAPE)
    other = ampkit.sparse_coo_tensor(PLACES[:, :3], tensor([2.0, 3.0, 4.0]), SHAPE)
    product = x * other
    close(product.to_dense(), DENSE * other.to_dense().numpy())
    (found,) = ampkit.grad((product.sum() + x.index_select(0, ampkit.tensor([3, 3])).sum()), values)
    close(found, [2, 3, 4, 2, 2, 0])  # the first and fifth are one element


def test_methods_are_those_of_the_functions():
    x = made()
    close(x.abs().to_dense(), abs(DENSE))
    close(x.mul(2).to_dense(), 2 * DENSE)
    close(x.multiply(x).to_dense(), DENSE**2)
    close(x.add(x, alpha=2).sub(x).div(4).to_dense(), DENSE / 2)
    assert (x * x.to_sparse_csr()).layout == ampkit.sparse_coo
    assert (x.to_sparse_csr() * x).layout == ampkit.sparse_csr


def test_a_product_is_sampled_where_the_input_stores_elements():
    draw = np.random.default_rng(3)
    left, right = draw.normal(size=(4, 5)), draw.normal(size=(5, 3))
    x = made().to_sparse_csr()
    values, one = x._held.detach().requires_grad_(), tensor(left, requires_grad=True)
    x = x._with(values)
    found = sparse.sampled_addmm(x, one, tensor(right), beta=2.0, alpha=-1.0)
    assert found.layout == ampkit.sparse_csr
    stored = np.zeros(SHAPE)
    stored[tuple(PLACES)] = 1
    close(found.to_dense(), 2 * DENSE - stored * (left @ right))
    by_values, by_left = ampkit.grad(found.to_dense().square().sum(), (values, one))
    dy = 2 * stored * (2 * DENSE - stored * (left @ right))
    close(by_values, 2 * dy[tuple(x._indices_held.numpy())])
    close(by_left, -dy @ right.T)


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3), (2, 2)])
@pytest.mark.parametrize("offsets", [[0], [-1, 2, 0], [4, -4, 1]])
def test_diagonals_are_placed_as_scipy_places_them(shape, offsets):
    from_scipy = pytest.importorskip("scipy.sparse", reason="needs SciPy")
    diagonals = np.arange(1.0, 1 + 4 * len(offsets)).reshape(len(offsets), 4)
    found = sparse.spdiags(tensor(diagonals), ampkit.tensor(offsets), shape)
    close(found.to_dense(), from_scipy.spdiags(diagonals, offsets, *shape).toarray())
    assert sparse.spdiags(tensor(diagonals), ampkit.tensor(offsets), shape, ampkit.sparse_csr).is_sparse_csr


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: made().index_select(0, ampkit.tensor([4])), RangeError, "index_select: needs"),
        (lambda: made() * made().t(), ShapeError, "mul: needs sparse tensors of one shape"),
        (lambda: sparse.spdiags(tensor([[1.0], [2.0]]), ampkit.tensor([1, 1]), (2, 2)), ArgumentError, "each offset"),
        (lambda: sparse.spdiags(tensor([[1.0]]), ampkit.tensor([1, 2]), (2, 2)), ShapeError, "needs diagonals"),
        (lambda: sparse.sampled_addmm(tensor(DENSE), tensor(DENSE), tensor(DENSE)), DTypeError, "needs a sparse input"),
        (lambda: sparse.sampled_addmm(made(), tensor(DENSE), tensor(DENSE)), ShapeError, "needs matrices whose"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_one_line(call, kind, message):
    with pytest.raises(kind, match=message):
        call()

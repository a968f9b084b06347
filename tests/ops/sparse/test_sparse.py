"""Sparse tensors answer as the dense tensors they stand for, and pass gradients to their values and dense operands."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, sparse

PLACES, SHAPE = np.array([[0, 1, 1, 3, 0, 0], [2, 0, 2, 1, 2, 1]]), (4, 3)  # (0, 2) twice; row 2 is empty
VALUES = np.array([0.5, -1.5, 2.0, 0.25, 1.0, -0.75])
DENSE = np.zeros(SHAPE)
np.add.at(DENSE, tuple(PLACES), VALUES)
RIGHT = np.random.default_rng(0).normal(size=(3, 5))


def tensor(values, **options):
    return ampkit.tensor(values, dtype=ampkit.float64, **options)


def made(**options):
    return ampkit.sparse_coo_tensor(PLACES, tensor(VALUES), SHAPE, **options)


def close(found, expected):
    np.testing.assert_allclose(found.detach().numpy(), expected, 1e-12, 1e-12)


def test_a_sparse_tensor_is_the_dense_one_with_equal_places_added():
    x = made()
    assert x.shape == SHAPE and x.size(0) == 4 and x.dim() == 2 and x.numel() == 12 and x._nnz() == 6
    assert x.layout == ampkit.sparse_coo and x.is_sparse and not tensor(1.0).is_sparse
    close(x.to_dense(), DENSE)
    once = x.coalesce()
    assert once.is_coalesced() and once.coalesce() is once
    places = once.indices().numpy()
    assert places.shape == (2, 5) and (np.diff(places[0] * 3 + places[1]) > 0).all()
    close(once.values(), DENSE[tuple(places)])
    close(ampkit.sparse_coo_tensor(PLACES, tensor(VALUES)).to_dense(), DENSE)


def test_a_dense_tensor_becomes_sparse_and_its_gradient_comes_back():
    x = tensor(DENSE, requires_grad=True)
    for to in (ops.to_sparse, ops.to_sparse_csr, lambda x: x.to_sparse(ampkit.sparse_csr)):
        close(to(x).to_dense(), DENSE)
    (found,) = ampkit.grad(x.to_sparse().values().square().sum(), x)
    close(found, 2 * DENSE)


def test_products_with_dense_matrices_and_vectors_from_either_side():
    x, right = made(), tensor(RIGHT)
    for found in (sparse.mm(x, right), x @ right, ampkit.mm(x, right), ops.matmul(x.to_sparse_csr(), right)):
        close(found, DENSE @ RIGHT)
    close(x @ right[:, 0], DENSE @ RIGHT[:, 0])
    close(right.T @ x.T, (DENSE @ RIGHT).T)
    close(tensor(np.ones(4)) @ x, np.ones(4) @ DENSE)
    close(sparse.addmm(tensor(np.ones((4, 5))), x, right, beta=2.0, alpha=-1.0), 2 - DENSE @ RIGHT)


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.coalesce(), lambda x: x.to_sparse_csr()], ids=range(3))
def test_gradients_of_a_product_reach_the_values_and_the_dense_operand(convert):
    values, right = tensor(VALUES, requires_grad=True), tensor(RIGHT, requires_grad=True)
    product = convert(ampkit.sparse_coo_tensor(PLACES, values, SHAPE)) @ right
    by_values, by_right = ampkit.grad(product.sin().sum(), (values, right))
    slope = np.cos(DENSE @ RIGHT)
    close(by_values, (slope @ RIGHT.T)[tuple(PLACES)])
    close(by_right, DENSE.T @ slope)


def test_a_sparse_leaf_has_a_sparse_gradient():
    x = made(requires_grad=True)
    assert x.requires_grad and x.grad is None
    (x @ tensor(RIGHT)).sum().backward()
    close(x.grad._values(), RIGHT.sum(-1)[PLACES[1]])
    assert not x.detach().requires_grad


def test_a_policy_treats_the_product_as_matmul():
    x, right = made().float(), ampkit.tensor(RIGHT).float()
    with ampkit.autocast(dtype=ampkit.bfloat16):
        found, dense = x @ right, x.to_dense() @ right
    assert found.dtype == dense.dtype == ampkit.bfloat16
    assert (found - dense).abs().max() <= 2**-7 * dense.abs().max()
    assert (x.half() @ right.half()).dtype == ampkit.float16


def test_elementwise_functions_transposes_and_sums():
    x = made()
    close((2 * x).to_dense(), 2 * DENSE)
    close((x / 4).to_dense(), DENSE / 4)
    close((-x).to_dense(), -DENSE)
    close((x + x).to_dense(), 2 * DENSE)
    close((x - x).to_dense(), 0 * DENSE)
    close(x + tensor(np.ones(SHAPE)), DENSE + 1)
    close((x * tensor(np.arange(12.0).reshape(SHAPE))).to_dense(), DENSE * np.arange(12.0).reshape(SHAPE))
    close(ops.relu(x).to_dense(), np.maximum(DENSE, 0))
    close(x.t().to_dense(), DENSE.T)
    close(x.to_sparse_csr().T.to_dense(), DENSE.T)
    close(x.sum(), DENSE.sum())
    close(sparse.sum(x, 0).to_dense(), DENSE.sum(0))
    close(sparse.sum(x, [0, 1]), DENSE.sum())
    close(copy.deepcopy(x).to_dense(), DENSE)
    assert x.to("float16").dtype == ampkit.float16 and x.clone().layout == ampkit.sparse_coo


@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_is_over_the_stored_elements(dim):
    present = np.where(DENSE != 0, DENSE, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(present - present.max(dim, keepdims=True))
        expected = np.nan_to_num(e / e.sum(dim, keepdims=True))
    close(sparse.softmax(made(), dim).to_dense(), expected)
    logs = sparse.log_softmax(made(), dim)
    close(logs.values().exp(), expected[tuple(logs.indices().numpy())])
    values = tensor(VALUES, requires_grad=True)
    (found,) = ampkit.grad(sparse.softmax(ampkit.sparse_coo_tensor(PLACES, values, SHAPE), dim).sum(), values)
    close(found, 0 * VALUES)


def test_rows_of_csr_begin_where_crow_indices_say():
    x = made().to_sparse_csr()
    assert x.layout == ampkit.sparse_csr and x.is_sparse_csr
    assert x.crow_indices().tolist() == [0, 2, 4, 4, 5] and x.col_indices().tolist() == [1, 2, 0, 2, 1]
    again = ampkit.sparse_csr_tensor(x.crow_indices(), x.col_indices(), x.values(), SHAPE)
    close(again.to_dense(), DENSE)
    close(again.to_sparse_coo().to_dense(), DENSE)


def test_a_graph_convolution_trains():
    adjacency = made(dtype=ampkit.float32)
    layer = nn.Linear(2, 3)
    features = ampkit.ones(3, 2)
    ops.cross_entropy(adjacency @ layer(features), ampkit.tensor([0, 1, 2, 0])).backward()
    assert layer.weight.grad.isfinite().all()


def test_empty_tensors():
    x = ampkit.sparse_coo_tensor(np.zeros((2, 0), int), tensor(np.zeros(0)), SHAPE)
    close(x.to_dense(), np.zeros(SHAPE))
    close(x @ tensor(RIGHT), np.zeros((4, 5)))
    assert x.coalesce()._nnz() == 0 and x.to_sparse_csr().crow_indices().tolist() == [0] * 5


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: ops.exp(made()), "exp: needs dense tensors, got a sparse one\nhelp: x.to_dense()"),
        (lambda: made() @ made(), r"sparse.mm: needs matrices \[n, M\] and \[M, K\]"),
        (
            lambda: made() @ made().float().t(),
            "sparse.mm: needs sparse matrices of one dtype, got .*float64 and .*float32",
        ),
        (lambda: made().values(), "values: needs a coalesced tensor"),
        (lambda: made() @ tensor(np.ones((4, 2))), "sparse.mm: needs matrices"),
        (lambda: made() + 1, "add: needs a tensor beside a sparse one"),
        (lambda: made().coalesce().crow_indices(), "crow_indices: needs the layout sparse_csr"),
        (lambda: ampkit.sparse_coo_tensor([[0], [5]], [1.0], (2, 2)), "sparse_coo_tensor: needs indices from 0 to 1"),
        (lambda: ampkit.sparse_coo_tensor([[0], [1]], [1.0, 2.0]), "sparse_coo_tensor: needs indices .d, k. and"),
        (lambda: ampkit.sparse_csr_tensor([0, 2, 1], [0, 1], [1.0, 2.0]), "crow_indices .n . 1. that begin with 0"),
        (lambda: sparse.softmax(made().sum(0), 0), "sparse.softmax: needs a matrix"),
        (lambda: ampkit.sparse_csc_tensor([1, 2], [0], [1.0]), "ccol_indices .n . 1. that begin with 0 and rise"),
        (lambda: ampkit.sparse_csc_tensor([0, 2], [0], [1.0]), "as many row_indices as the last of ccol_indices"),
        (lambda: ampkit.sparse_csc_tensor([0, 1], [0], [1.0], (3, 2)), r"sparse_csc_tensor: needs a size .N, 1."),
        (lambda: ampkit.sparse_csc_tensor([0, 1], [3], [1.0], (3, 1)), "needs indices from 0 to 2"),
        (lambda: made().row_indices(), "row_indices: needs the layout sparse_csc"),
        (lambda: made().to_sparse_csc().indices(), "indices: needs the layout sparse_coo"),
    ],
    ids=range(17),
)
def test_what_is_wrong_is_said_in_one_line(call, line):
    with pytest.raises(ampkit.AmpkitError, match=line):
        call()


def test_a_matrix_by_columns_is_that_by_rows_and_goes_back():
    x = made()
    columns = x.to_sparse_csc()
    assert columns.layout == ampkit.sparse_csc and not columns.is_sparse and not columns.is_sparse_csr
    assert columns.ccol_indices().tolist() == [0, 1, 3, 5] and columns.row_indices().tolist() == [1, 0, 3, 0, 1]
    assert columns.values().tolist() == [-1.5, -0.75, 0.25, 1.5, 2.0]
    again = ampkit.sparse_csc_tensor(columns.ccol_indices(), columns.row_indices(), columns.values(), SHAPE)
    rows = x.to_sparse_csr()
    for found in (columns, again, tensor(DENSE).to_sparse_csc(), x.to_sparse(ampkit.sparse_csc), rows.to_sparse_csc()):
        close(found.to_dense(), DENSE)
        close(found @ tensor(RIGHT), DENSE @ RIGHT)
        assert found.to_sparse_csr().crow_indices().tolist() == [0, 2, 4, 4, 5]
        assert found.to_sparse_csr().values().tolist() == rows.values().tolist()
        assert found.to_sparse_coo().coalesce().indices().tolist() == x.coalesce().indices().tolist()
        assert (found + found).layout == (found * rows).layout == (2 * found).layout == ampkit.sparse_csc
        close((found * rows).to_dense(), DENSE**2)
    assert (columns * rows).values().tolist() == (columns.values() ** 2).tolist()
    assert columns.t().layout == ampkit.sparse_csr and rows.t().ccol_indices().tolist() == rows.crow_indices().tolist()
    assert columns.transpose(0, 0).layout == ampkit.sparse_csc
    close(columns.t().to_dense(), DENSE.T)
    assert ampkit.sparse_csc_tensor([0, 1, 1], [2], [5.0]).to_dense().tolist() == [[0, 0], [0, 0], [5, 0]]


def test_the_gradient_of_a_matrix_by_columns_reaches_the_values_that_it_was_made_of():
    values = tensor(VALUES, requires_grad=True)
    product = ampkit.sparse_coo_tensor(PLACES, values, SHAPE).to_sparse_csc() @ tensor(RIGHT)
    (found,) = ampkit.grad(product.sin().sum(), values)
    close(found, (np.cos(DENSE @ RIGHT) @ RIGHT.T)[tuple(PLACES)])

"""Products of sparse tensors with each other and in batches, and stored elements that have axes of their own."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import sparse
from ampkit.ops.sparse.arithmetic import hspmm, smm, sspaddmm
from ampkit.testing import gradcheck

DRAW = np.random.default_rng(0)
PLACES = np.array([[0, 1, 1, 3, 0, 0], [2, 0, 2, 1, 2, 1]])  # (0, 2) twice; row 2 is empty
OTHERS = np.array([[2, 0, 1, 2], [4, 1, 1, 0]])


def values(*shape):
    return ampkit.tensor(DRAW.normal(size=shape), dtype=ampkit.float64, requires_grad=True)


def matrix(places=PLACES, size=(4, 3), *dense):
    return ampkit.sparse_coo_tensor(places, values(places.shape[1], *dense), (*size, *dense))


def close(found, expected):
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), 1e-12, 1e-12)


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
def test_the_product_of_two_sparse_matrices_is_sparse_and_has_gradients(layout):
    x, y = matrix(), matrix(OTHERS, (3, 5))
    found = sparse.mm(x.to_sparse(getattr(ampkit, layout)), y.to_sparse(getattr(ampkit, layout)))
    assert found.layout == getattr(ampkit, layout) and found.is_coalesced() and found.shape == (4, 5)
    close(found.to_dense(), x.to_dense() @ y.to_dense())

    def product(a, b):
        return (x._with(a) @ y._with(b)).to_dense()

    gradcheck(product, [x._values(), y._values()])
    assert (matrix(PLACES[:, :0]) @ y)._nnz() == 0


def test_sixteen_bits_are_multiplied_and_added_in_float32():
    row, size = np.stack([np.zeros(300, int), np.arange(300)]), (1, 300)
    x = ampkit.sparse_coo_tensor(row, np.full(300, 0.1, np.float32), size).bfloat16()
    found = sparse.mm(x, x.t())
    assert found.dtype == ampkit.bfloat16
    exact = 300 * float(x._values()[0].double()) ** 2
    assert found.values().item() == pytest.approx(exact, rel=2**-8)  # 1.3 in bfloat16's own sums


def test_batches_multiply_as_their_matrices_do():
    xs, right = [matrix() for _ in range(3)], values(3, 3, 2)
    x = ampkit.stack(xs)
    assert x.shape == (3, 4, 3) and x.sparse_dim() == 3
    found = ampkit.bmm(x, right)
    close(found, ampkit.stack([each @ right[i] for i, each in enumerate(xs)]))
    close(x[-1].to_dense(), xs[2].to_dense())
    gradcheck(lambda a, b: x._with(a).bmm(b), [x._values().detach().requires_grad_(), right])
    joined = ampkit.cat([xs[0], xs[1]], 1)
    close(joined.to_dense(), ampkit.cat([xs[0].to_dense(), xs[1].to_dense()], 1))


def test_addmm_adds_to_a_dense_matrix_and_its_relatives_stay_sparse():
    x, right, dense = matrix(), values(3, 2), values(4, 2)
    close(ampkit.addmm(dense, x, right, beta=0.5, alpha=2), 0.5 * dense + 2 * (x.to_dense() @ right))
    rows = hspmm(x, right)
    assert rows._nnz() == 3 and rows.dense_dim() == 1
    close(rows.to_dense(), x.to_dense() @ right)
    each = smm(x, right)
    assert each._nnz() == 6 and not each.dense_dim()
    close(each.to_dense(), x.to_dense() @ right)
    start = dense.detach().to_sparse()
    close(sspaddmm(start, x, right, beta=0.5, alpha=2).to_dense(), 0.5 * dense + 2 * (x.to_dense() @ right))


def test_stored_elements_may_have_axes():
    x = matrix(PLACES, (4, 3), 2)
    assert (x.sparse_dim(), x.dense_dim(), x.shape) == (2, 1, (4, 3, 2))
    whole = np.zeros((4, 3, 2))
    np.add.at(whole, tuple(PLACES), x._values().detach().numpy())
    for found in (x, x.coalesce(), x.transpose(0, 1).transpose(1, 0)):
        np.testing.assert_allclose(found.to_dense().detach().numpy(), whole, 1e-12)
    dense = x.to_dense()
    close(x.sum(2).to_dense(), dense.sum(2))
    close(x.sum(0).to_dense(), dense.sum(0))
    close(x.sum((0, 1)), dense.sum((0, 1)))
    close((x + x).to_dense(), 2 * dense)
    close(x[1].to_dense(), dense[1])
    close(x.index_select(0, ampkit.tensor([3, 0, 0])).to_dense(), dense[ampkit.tensor([3, 0, 0])])
    assert dense.to_sparse(2)._nnz() == 5 and dense.to_sparse(dense_dim=2)._nnz() == 3
    close(dense.to_sparse(1).to_dense(), dense)


@pytest.mark.parametrize("size", [(4, 3, 2), (3, 2), (2,), (1,), (5, 4, 3, 2), (4, 1, 2)])
def test_a_product_with_a_dense_tensor_broadcasts(size):
    x, dense = matrix(PLACES, (4, 3), 2), values(*size)
    close((x * dense).to_dense(), x.to_dense() * dense)
    close((dense * x).to_dense(), x.to_dense() * dense)
    x = ampkit.sparse_coo_tensor([[0, 0], [1, 2]], values(2), (1, 3))
    dense = values(4, 3)
    close((x * dense).to_dense(), x.to_dense() * dense)


def test_a_sparse_tensor_changes_in_place_and_changes_a_dense_one():
    x, dense = matrix(), ampkit.ones(4, 3, dtype=ampkit.float64)
    wanted = (dense + x.to_dense()) * x.to_dense()
    dense.add_(x)
    assert dense.mul_(x) is dense
    close(dense, wanted)
    dense.sum().backward()
    assert x._values().grad is not None
    y = x.detach()
    assert y.mul_(3) is y
    close(y.to_dense(), 3 * x.to_dense())


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: matrix().bmm(values(3, 2)), r"bmm: needs \[b, n, M\] and \[b, M, K\], got"),
        (lambda: matrix().detach().add_(ampkit.ones(4, 3)), "add_: needs a sparse answer of shape .*, got a dense one"),
        (lambda: matrix()._with(values(6)).mul_(2), "mul_: needs a tensor that is no leaf, or no_grad"),
        (lambda: matrix()[0.5], r"SparseTensor\[...\]: needs an integer, got float"),
        (lambda: matrix()[4], "needs indices from 0 to 3, got 4"),
        (lambda: matrix(PLACES, (4, 3), 2).transpose(1, 2), "transpose: needs two of the 2 sparse axes"),
        (lambda: matrix(PLACES, (4, 3), 2).to_sparse_csr(), "to_sparse_csr: needs a matrix of numbers"),
        (lambda: matrix() * values(5), r"mul: needs a dense tensor that broadcasts with \(4, 3\)"),
        (lambda: ampkit.cat([matrix(), matrix(OTHERS, (3, 5))]), "cat: needs shapes that differ along one axis"),
        (lambda: values(3, 3).to_sparse(blocksize=(1, 1)), "to_sparse: needs from 1 to all axes sparse, .* no blocks"),
        (lambda: ampkit.sparse_coo_tensor(PLACES, values(6, 2), (4, 3, 3)), r"a size of 3 axes that ends with \(2,\)"),
    ],
    ids=range(11),
)
def test_what_is_wrong_is_said_in_one_line(call, line):
    with pytest.raises(ampkit.AmpkitError, match=line):
        call()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("topk", r"SparseTensor has no topk\nhelp: x.to_dense\(\).topk"),
        ("to_sparse_bsr", r"ampkit has no torch.Tensor.to_sparse_bsr\nhelp: `x.to_sparse_csr\(\)`, without blocks"),
        ("unheard_of", "'SparseTensor' object has no attribute 'unheard_of'"),
    ],
    ids=str,
)
def test_a_method_that_it_lacks_says_what_to_use(name, line):
    assert not hasattr(matrix(), name)
    with pytest.raises(AttributeError, match=line):
        getattr(matrix(), name)

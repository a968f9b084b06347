"""Values put and reduced at places: what is named twice, zeros in products, ties, indices that change, wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import autocast, ops, tensor, zeros
from ampkit.base.dtypes import float16, float32
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.autograd.tape import grad
from ampkit.testing import gradgradcheck


def test_values_are_put_or_added_as_often_as_a_place_is_named():
    x, twice = zeros(2, 3), (tensor([1, 1, -2]), tensor([2, 2, 0]))
    assert ops.index_put(x, twice, tensor(1.0), True).tolist() == [[1, 0, 0], [0, 0, 2]]
    assert ops.index_put(x, (tensor([True, False]),), tensor([1.0, 2.0, 3.0])).tolist() == [[1, 2, 3], [0, 0, 0]]
    assert x.index_put_((None, tensor([1])), tensor([[5.0], [6.0]])) is x
    assert x.tolist() == [[0, 5, 0], [0, 6, 0]]
    assert x.put_(tensor([-1, 0]), tensor([8.0, 9.0])).tolist() == [[9, 5, 0], [0, 6, 8]]


def test_sums_at_a_place_are_carried_in_float32():
    many = tensor(np.zeros(4096, np.int64))
    out = ops.index_put(zeros(1, dtype=float16), (many,), ops.ones(4096, dtype=float16), True)
    assert (out.dtype, out.item()) == (float16, 4096)
    with autocast(dtype="float16"):
        assert ops.index_put(zeros(1), (many,), ops.ones(4096, dtype=float16), True).dtype == float32


def test_a_gradient_is_that_of_the_indices_of_the_forward():
    x, index = zeros(3, requires_grad=True), tensor([0, 2])
    out = ops.index_put(x, (index,), tensor([1.0, 1.0]))
    index.fill_(1)
    assert grad(out.sum(), x)[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("reduce", "with_self", "alone"),
    [
        ("sum", [8.0, 2, 10], [7.0, 2, 7]),
        ("prod", [12.0, 2, 30], [12.0, 2, 10]),
        ("mean", [8 / 3, 2, 10 / 3], [3.5, 2, 3.5]),
        ("amax", [4.0, 2, 5], [4.0, 2, 5]),
        ("amin", [1.0, 2, 2], [3.0, 2, 2]),
    ],
)
def test_what_comes_to_a_place_is_reduced_there(reduce, with_self, alone):
    x, index, src = tensor([1.0, 2.0, 3.0]), tensor([0, 2, 0, 2]), tensor([3.0, 2.0, 4.0, 5.0])
    assert ops.scatter_reduce(x, 0, index, src, reduce).tolist() == pytest.approx(with_self)
    assert ops.scatter_reduce(x, 0, index, src, reduce, include_self=False).tolist() == pytest.approx(alone)
    assert x.scatter_reduce_(0, index, src, reduce).tolist() == pytest.approx(with_self)


def test_products_with_zeros_have_the_gradient_of_the_others_and_equal_extremes_share_theirs():
    x = tensor([2.0, 3.0, 4.0], requires_grad=True)
    src = tensor([0.0, 5.0, 0.0, 0.0], requires_grad=True)
    out = ops.scatter_reduce(x, 0, tensor([0, 0, 1, 1]), src, "prod")
    assert out.tolist() == [0, 0, 4]
    gradients = grad(out.sum(), (x, src))
    assert [s.tolist() for s in gradients] == [[0, 0, 1], [10, 0, 0, 0]]
    tied = tensor([2.0, 2.0, 1.0], requires_grad=True)
    out = ops.scatter_reduce(x, 0, tensor([0, 0, 0]), tied, "amax")
    assert [s.tolist() for s in grad(out.sum(), (x, tied))] == [
        pytest.approx([1 / 3, 1, 1]),
        pytest.approx([1 / 3, 1 / 3, 0]),
    ]


@pytest.mark.parametrize("include_self", [True, False])
def test_the_second_derivative_of_products_holds_at_zeros(include_self):
    x = tensor(np.array([0.0, 3.0, 4.0]), requires_grad=True)
    src = tensor(np.array([0.0, 5.0, 0.0, 0.0, 2.0]), requires_grad=True)
    index = tensor([0, 0, 1, 1, 2])
    assert gradgradcheck(lambda x, s: ops.scatter_reduce(x, 0, index, s, "prod", include_self=include_self), (x, src))


def test_a_tensor_without_axes_is_one_place():
    assert ops.scatter_reduce(tensor(2.0), 0, tensor(0), tensor(3.0), "prod").item() == 6
    assert ops.scatter(tensor([1.0, 2.0]), 0, tensor([1]), 3.0, reduce="multiply").tolist() == [1, 6]


@pytest.mark.cpu
def test_wrong_places_are_told_in_a_line():
    x, one = zeros(2, 3), tensor(1.0)
    for call, error in (
        (lambda: ops.index_put(x, (tensor([2]),), one), RangeError),
        (lambda: ops.index_put(x, (tensor([-3]),), one, True), RangeError),
        (lambda: ops.index_put(x, (tensor([0]),) * 3, one), ShapeError),
        (lambda: ops.index_put(x, (tensor([True]),), one), ShapeError),
        (lambda: ops.index_put(x, (None, tensor([1])), zeros(4, 1)), ShapeError),
        (lambda: ops.index_put(x, tensor([0]), one), DTypeError),
        (lambda: ops.index_put(x, (tensor([0.5]),), one), DTypeError),
        (lambda: ops.put(x, tensor([0, 1]), one), ShapeError),
        (lambda: ops.put(x, tensor([6]), tensor([1.0])), RangeError),
        (lambda: ops.scatter_reduce(x, 0, tensor([[5]]), tensor([[1.0]]), "sum"), RangeError),
        (lambda: ops.scatter_reduce(x, 0, tensor([[0]]), tensor([[1.0]]), "max"), ArgumentError),
        (lambda: ops.scatter_reduce(x, 0, tensor([0]), tensor([1.0]), "sum"), ShapeError),
        (lambda: ops.index_put(x, (tensor([0, 1]),), zeros(2)), ShapeError),
        (lambda: ops.index_put(x, (tensor([0, 1]),), zeros(2), True), ShapeError),
    ):
        with pytest.raises(error, match=r"^[a-z_]+: needs .+, got "):
            call()


X, PLACES, HALVES = ops.ones(3), tensor([0, 1]), ops.ones(2, dtype=float16)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.scatter(X, 0, PLACES, HALVES),
        lambda: ops.scatter_add(X, 0, PLACES, HALVES),
        lambda: ops.scatter_reduce(X, 0, PLACES, HALVES, "amax"),
        lambda: ops.index_add(X, 0, PLACES, HALVES),
        lambda: ops.index_copy(X, 0, PLACES, HALVES),
        lambda: ops.index_reduce(X, 0, PLACES, HALVES, "mean"),
        lambda: ops.index_put(X, (PLACES,), HALVES),
        lambda: ops.put(X, PLACES, HALVES),
        lambda: ops.scatter(PLACES, 0, PLACES, X),
        lambda: ops.masked_scatter(X, X > 0, HALVES),
    ],
)
def test_what_is_put_somewhere_has_the_dtype_of_what_is_there(call):
    with pytest.raises(DTypeError, match="of one dtype, got|a source of float32, got float16"):
        call()


PUTTING = {
    "scatter": lambda x, y: ops.scatter(x, 0, tensor([0, 1]), y),
    "scatter_add": lambda x, y: ops.scatter_add(x, 0, tensor([0, 1]), y),
    "scatter of sums": lambda x, y: ops.scatter(x, 0, tensor([0, 1]), y, reduce="add"),
    "scatter_reduce": lambda x, y: ops.scatter_reduce(x, 0, tensor([0, 1]), y, "amax"),
    "index_add": lambda x, y: ops.index_add(x, 0, tensor([0, 1]), y),
    "index_copy": lambda x, y: ops.index_copy(x, 0, tensor([0, 1]), y),
    "index_reduce": lambda x, y: ops.index_reduce(x, 0, tensor([0, 1]), y, "mean"),
    "index_put": lambda x, y: ops.index_put(x, (tensor([0, 1]),), y),
    "put": lambda x, y: ops.put(x, tensor([0, 1]), y),
    "masked_scatter": lambda x, y: ops.masked_scatter(x, tensor([True, True, False]), y),
    "where": lambda x, y: ops.where(tensor([True, False]), x[:2], y),
    "cat": lambda x, y: ops.cat([x, y]),
    "stack": lambda x, y: ops.stack([x[:2], y]),
    "lerp": lambda x, y: ops.lerp(x[:2], y, 1),
    "addcmul": lambda x, y: ops.addcmul(x[:2], y, y),
}


@pytest.mark.parametrize("put", PUTTING.values(), ids=PUTTING)
@pytest.mark.parametrize("region", [float16, "bfloat16"])
def test_in_a_region_what_is_put_somewhere_meets_in_the_widest_dtype(put, region):
    kinds = ["float64", "float32", "float16", "bfloat16", "int64"]
    for first, second in [(a, b) for a in kinds for b in kinds]:
        x, y = ops.ones(3, dtype=first), ops.ones(2, dtype=second)
        with autocast(dtype=region):
            assert put(x, y).dtype == ops.promote_types(first, second), (first, second)


def test_in_a_region_what_is_scattered_into_a_mask_gets_its_gradient():
    x, y = tensor([1.0, 2.0, 3.0], requires_grad=True), tensor([5.0, 6.0], dtype=float16, requires_grad=True)
    with autocast(dtype=float16):
        out = ops.masked_scatter(x, tensor([True, False, True]), y)
    (out * tensor([1.0, 2.0, 3.0])).sum().backward()
    assert out.tolist() == [5, 2, 6] and x.grad.tolist() == [0, 2, 0]
    assert y.grad.tolist() == [1, 3] and y.grad.dtype == float16


@pytest.mark.parametrize("place", [0, [0]])
def test_a_tensor_without_axes_is_indexed_as_one_of_length_1(place):
    index, point = tensor(place), tensor(2.0)
    source = ops.ones(*index.shape) * 5
    assert ops.gather(point, 0, index).tolist() == (point * ops.ones(*index.shape)).tolist()
    for out, want in [
        (ops.index_fill(point, 0, index, 7.0), 7),
        (ops.index_copy(point, 0, index, source), 5),
        (ops.index_reduce(point, 0, index, source, "prod"), 10),
        (ops.scatter(point, 0, index, source), 5),
        (ops.scatter_add(point, -1, index, source), 7),
        (ops.scatter_reduce(point, 0, index, source, "amax"), 5),
    ]:
        assert (out.shape, out.item()) == ((), want)


def test_an_index_without_axes_names_one_place_of_a_vector():
    x, at, source = tensor([1.0, 2.0, 4.0], requires_grad=True), tensor(2), tensor(8.0, requires_grad=True)
    (gradient,) = grad(ops.gather(x, 0, at) * 3, x)
    assert gradient.tolist() == [0, 0, 3]
    for out, want in [(ops.scatter(x, 0, at, source), [1, 1, 0]), (ops.scatter_add(x, 0, at, source), [1, 1, 1])]:
        assert out[2].item() == (8 if want[2] == 0 else 12)
        gradients = grad(out.sum(), (x, source))
        assert [g.tolist() for g in gradients] == [want, 1]
    assert ops.index_reduce(x.detach(), 0, at, tensor([3.0]), "mean").tolist() == [1, 2, 3.5]


def test_a_number_gathered_twice_gets_both_gradients():
    x = tensor(2.0, requires_grad=True)
    assert grad(ops.gather(x, 0, tensor([0, 0])).sum(), x)[0].item() == 2


def test_negative_indices_of_take_along_dim_count_from_the_end():
    x = tensor([[1, 2, 3], [4, 5, 6]])
    assert ops.take_along_dim(x, tensor([[-1, 0]]), 1).tolist() == [[3, 1], [6, 4]]
    with pytest.raises(RangeError, match="take_along_dim: needs indices from -3 to 2, got -4"):
        ops.take_along_dim(x, tensor([[-4]]), 1)
    with pytest.raises(DTypeError, match="take_along_dim: needs an index of integers, got bool"):
        ops.take_along_dim(x, x > 2, 1)
    with pytest.raises(DTypeError, match="take: needs an index of integers, got bool"):
        ops.take(x, x > 2)
    for function in (lambda i: ops.index_fill(x, 0, i, 0), lambda i: ops.index_copy(x, 0, i, x)):
        with pytest.raises(ShapeError, match="an index of at most one axis"):
            function(tensor([[0], [1]]))

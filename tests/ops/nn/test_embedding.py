"""Embedding: the sum of its gradient, padding, and indices outside the table."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16, float16
from ampkit.base.errors import DTypeError, RangeError, ShapeError, UndefinedError
from ampkit.core.autograd.tape import grad
from ampkit.core.op import ops as registry
from ampkit.core.policy import autocast
from ampkit.nn import Parameter
from ampkit.testing import assert_close, gradgradcheck


def _gradient(index, dy, rows, **options):
    weight = Tensor(np.zeros((rows, dy.shape[-1]), dy.dtype), requires_grad=True)
    return grad(ops.embedding(tensor(index), weight, **options), weight, Tensor(dy))[0].array


@pytest.mark.cpu
@pytest.mark.parametrize("uses", [1, 2, 3, 7, 64, 1000])
def test_every_use_of_a_row_adds_to_its_gradient(uses):
    generator = np.random.default_rng(uses)
    index = generator.permutation(np.repeat([0, 3, 4, 4], uses))
    dy = generator.normal(size=(4 * uses, 3))
    want = np.zeros((6, 3))
    np.add.at(want, index, dy)
    assert_close(_gradient(index, dy, 6), want)


@pytest.mark.cpu
def test_a_million_small_gradients_are_not_lost_in_float16():
    dy = np.full((100_000, 1), 2**-10, np.float16)
    assert _gradient(np.zeros(100_000, np.int64), dy, 2)[0, 0] == np.float16(100_000 * 2**-10)


@pytest.mark.cpu
def test_the_gradient_is_the_same_bits_every_time():
    generator = np.random.default_rng(0)
    index, dy = generator.integers(0, 9, 500), generator.normal(size=(500, 4)).astype(np.float32)
    assert np.array_equal(_gradient(index, dy, 9), _gradient(index, dy, 9))


@pytest.mark.cpu
@pytest.mark.parametrize("padding", [1, -5])
def test_the_padding_row_is_read_but_gets_no_gradient_not_even_nan(padding):
    index, dy = np.array([1, 2, 1]), np.array([[np.nan], [1.0], [1.0]])
    assert np.array_equal(_gradient(index, dy, 6, padding_idx=padding), [[0], [0], [1], [0], [0], [0]])
    weight = tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    assert np.array_equal(ops.embedding(tensor(index), weight, padding_idx=padding).array, [[2], [3], [2]])


@pytest.mark.cpu
def test_second_derivatives_respect_the_padding():
    index, weight = tensor([0, 1, 1, 2]), Tensor(np.ones((3, 2)), requires_grad=True)

    def squared(weight):
        out = ops.embedding(index, weight, padding_idx=2)
        (gradient,) = grad(ops.sum(out * out), weight, create_graph=True)
        return gradient

    w = Tensor(np.random.default_rng(0).normal(size=(3, 2)), requires_grad=True)
    (second,) = grad(squared(w), w, Tensor(np.ones((3, 2))))
    assert_close(second, [[2.0, 2], [4, 4], [0, 0]])
    gradgradcheck(lambda w: ops.embedding(index, w), [weight])


@pytest.mark.cpu
def test_the_dtype_is_that_of_the_table_and_a_parameter_gets_float32():
    weight = Parameter(np.ones((4, 2), np.float16))
    with autocast(dtype=bfloat16):
        out = ops.embedding(tensor([1, 1]), weight)
    assert out.dtype == float16
    out.backward(Tensor(np.full((2, 2), 60000, np.float16)))
    assert np.array_equal(weight.grad.array[1], np.float32([120000, 120000]))


@pytest.mark.cpu
@pytest.mark.parametrize("bad", [4, -1])
def test_an_index_outside_the_table_is_named_with_its_place(bad):
    with pytest.raises(RangeError, match=rf"indices from 0 to 3 \(4 rows\), got {bad} at position \(1, 0\)"):
        ops.embedding(tensor([[0, 3], [bad, 9]]), Tensor(np.ones((4, 2))))


@pytest.mark.cpu
def test_misfit_arguments_are_refused():
    table = Tensor(np.ones((4, 2)))
    with pytest.raises(DTypeError, match="integer indices, got float64"):
        ops.embedding(Tensor(np.ones(2)), table)
    with pytest.raises(ShapeError, match=r"\[rows, width\], got \(4,\)"):
        ops.embedding(tensor([0]), Tensor(np.ones(4)))
    with pytest.raises(RangeError, match="padding_idx from -4 to 3, got 4"):
        ops.embedding(tensor([0]), table, padding_idx=4)


@pytest.mark.cpu
def test_sum_rows_is_the_transpose_of_embedding():
    generator = np.random.default_rng(0)
    index = tensor(generator.integers(0, 5, 8))
    rows, table = Tensor(generator.normal(size=(8, 3))), Tensor(generator.normal(size=(5, 3)))
    one = (ops.embedding(index, table).array * rows.array).sum()
    assert_close(one, (registry["sum_rows"](rows, index, rows=5).array * table.array).sum())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_max_norm_scales_the_rows_that_are_used_in_place(norm_type, dtype):
    values = np.array([[3, 4], [0.3, 0.4], [6, 8], [0, 0]])
    for call in (
        lambda table: ops.embedding(tensor([[0, 1], [0, 3]]), table, None, 2.5, norm_type),
        lambda table: ops.embedding_bag(tensor([[0, 1], [0, 3]]), table, None, 2.5, norm_type, mode="sum"),
    ):
        table = tensor(values).to(dtype).detach().requires_grad_()
        call(table).sum().backward()
        norm = np.linalg.norm(values[0], norm_type)
        want = values * np.array([[2.5 / norm], [1], [1], [1]])
        np.testing.assert_allclose(table.detach().double().numpy(), want, rtol=4e-3 if dtype == "bfloat16" else 2e-7)
        assert table.grad.tolist() == [[2, 2], [1, 1], [0, 0], [1, 1]]
    with pytest.raises(RangeError, match=r"indices from 0 to 3 .* got -1 at position 1"):
        ops.embedding(tensor([0, -1]), table, max_norm=1.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scale_grad_by_freq_divides_by_the_uses(dtype):
    table = ampkit.ones(4, 2, dtype=dtype, requires_grad=True)
    index, scale = tensor([[0, 1, 0], [2, 0, 2]]), tensor([[1.0], [10.0]], dtype=dtype)
    calls = {
        "rows": lambda: ops.embedding(index, table, scale_grad_by_freq=True) * scale[:, None],
        "bags": lambda: ops.embedding_bag(index, table, mode="sum", scale_grad_by_freq=True) * scale,
    }
    for call in calls.values():
        table.grad = None
        call().sum().backward()
        assert table.grad.tolist() == [[4, 4], [1, 1], [10, 10], [0, 0]]
    with pytest.raises(UndefinedError, match="mode 'sum' or 'mean' with scale_grad_by_freq, got 'max'"):
        ops.embedding_bag(index, table, mode="max", scale_grad_by_freq=True)

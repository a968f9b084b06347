"""Softmax and its kin: extremes, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.base.errors import DTypeError, RangeError
from ampkit.core.autograd.tape import grad
from ampkit.core.policy import Policy, autocast
from ampkit.testing import assert_close


@pytest.mark.cpu
def test_logits_of_any_size_do_not_overflow():
    x = tensor([[1e4, 0.0, -1e4], [3e38, -3e38, 0.0]])
    assert np.array_equal(ops.softmax(x, -1).array, [[1, 0, 0], [1, 0, 0]])
    assert np.array_equal(ops.log_softmax(x, -1).array[0], [0, -1e4, -2e4])
    assert np.array_equal(ops.logsumexp(x, -1).array, np.float32([1e4, 3e38]))


@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax, ops.logsumexp])
def test_nan_flows_through_its_row_and_no_other(function):
    out = function(tensor([[0.0, np.nan], [1.0, 2.0]]), 1).array.reshape(2, -1)
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1]).all()


@pytest.mark.cpu
def test_logsumexp_of_nothing_is_minus_infinity_and_has_no_gradient_there():
    assert np.array_equal(ops.logsumexp(Tensor(np.ones((2, 0))), 1).array, [-np.inf, -np.inf])
    x = tensor([[-np.inf, -np.inf], [np.inf, 0.0]], requires_grad=True)
    out = ops.logsumexp(x, 1)
    assert np.array_equal(out.array, [-np.inf, np.inf])
    (gradient,) = grad(out, x, Tensor(np.ones(2, np.float32)))
    assert np.array_equal(gradient.array[0], [0, 0])


def test_an_explicit_dtype_casts_first_and_wins_over_autocast():
    x = tensor(np.random.default_rng(0).normal(size=(2, 3)), dtype=float16)
    assert ops.softmax(x, 1, dtype=float64).dtype == float64
    with autocast(dtype=float16):
        assert ops.softmax(x, 1).dtype == float32
        assert ops.log_softmax(x, 1, dtype=bfloat16).dtype == bfloat16
    with autocast(policy=Policy.fast("float16")):
        assert ops.softmax(x, 1).dtype == float16


def test_integers_give_float32():
    assert_close(ops.softmax(tensor([0, 0]), 0), np.float32([0.5, 0.5]))
    assert ops.softmax(tensor([0, 0]), 0).dtype == float32


@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax, ops.logsumexp])
@pytest.mark.parametrize("dim", [2, -3])
def test_a_dim_out_of_range_is_refused(function, dim):
    with pytest.raises(RangeError, match=f"dim from -2 to 1, got {dim}"):
        function(Tensor(np.ones((2, 3))), dim)
    with pytest.raises(DTypeError, match="dim as an integer"):
        function(Tensor(np.ones((2, 3))), 1.0)

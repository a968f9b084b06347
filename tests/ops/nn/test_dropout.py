"""Dropout: what it keeps, and that the same draw keeps the same."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.base.dtypes import bfloat16, float16
from ampkit.base.errors import ArgumentError
from ampkit.core import random
from ampkit.core.autograd.recompute import recompute
from ampkit.core.op import ops as registry
from ampkit.core.policy import autocast
from ampkit.core.tensor import Tensor
from ampkit.testing import gradcheck, gradgradcheck

ONES = np.ones((50, 41), np.float32)


def test_kept_elements_are_scaled_and_the_gradient_falls_on_the_same_ones():
    x = Tensor(ONES.copy(), requires_grad=True)
    out = ops.dropout(x, 0.25)
    out.backward(Tensor(ONES))
    kept = out.array != 0
    assert np.all(out.array[kept] == np.float32(1 / 0.75))
    assert np.array_equal(x.grad.array, out.array)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p(p):
    random.manual_seed(3)
    zeros = (ops.dropout(Tensor(np.ones(100_000, np.float32)), p).array == 0).mean()
    assert abs(zeros - p) < 4 * np.sqrt(p * (1 - p) / 100_000)


def test_a_seed_fixes_the_draws_and_each_draw_differs():
    random.manual_seed(5)
    first, second = (ops.dropout(Tensor(ONES)).array for _ in range(2))
    random.manual_seed(5)
    assert np.array_equal(ops.dropout(Tensor(ONES)).array, first)
    assert not np.array_equal(first, second)


def test_a_mask_depends_on_the_order_of_elements_not_on_the_shape():
    flat = random.keep_mask(1, 2, 0.5, (35,))
    assert np.array_equal(random.keep_mask(1, 2, 0.5, (5, 7)).ravel(), flat)
    assert np.array_equal(random.keep_mask(1, 2, 0.5, (34,)), flat[:34])
    for start in (0, 1, 15, 16, 21, 34):
        assert np.array_equal(random.keep_mask(1, 2, 0.5, (35 - start,), start), flat[start:])
    assert random.keep_mask(1, 2, 0.5, (0, 7)).shape == (0, 7)
    assert random.keep_mask(1, 2, 0.5, ()).shape == ()
    assert not random.keep_mask(1, 2, 1 - 2**-20, (99,)).any()


def test_recompute_draws_the_same_mask():
    x = Tensor(ONES.copy(), requires_grad=True)
    out = recompute(lambda t: ops.dropout(t, 0.5), x)
    out.backward(Tensor(ONES))
    assert np.array_equal(x.grad.array, out.array)


def test_without_training_the_input_itself_comes_back_and_no_draw_is_spent():
    x, before = Tensor(ONES), random.get_rng_state()
    assert ops.dropout(x, 0.5, training=False) is x
    assert ops.dropout(x, 0.0) is x
    assert random.get_rng_state() == before


def test_nan_stays_nan_even_where_dropped():
    assert np.isnan(ops.dropout(Tensor(np.full(64, np.nan)), 0.5).array).all()
    assert np.isnan(ops.dropout(Tensor(np.full(64, np.nan)), 1.0).array).all()


def test_the_dtype_is_that_of_the_input():
    with autocast(dtype=float16):
        assert ops.dropout(Tensor(ONES)).dtype == np.float32
        assert ops.dropout(Tensor(ONES.astype(bfloat16))).dtype == bfloat16


@pytest.mark.cpu
def test_gradients_of_one_draw_agree_with_finite_differences():
    x = Tensor(np.random.default_rng(0).normal(size=(6, 5)), requires_grad=True)
    gradcheck(lambda t: registry["dropout"](t, 0.3, 7, 1), [x])
    gradgradcheck(lambda t: registry["dropout"](t, 0.3, 7, 1), [x])


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(ArgumentError, match="probability p from 0 to 1"):
        ops.dropout(Tensor(ONES), p)

"""Running extremes, ranks, the most frequent, sums without NaN, histograms: ties, NaN, wrong arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import ops, tensor
from ampkit.base.dtypes import float16, int64
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.autograd.tape import grad


def test_running_extremes_take_the_last_of_equal_ones_and_keep_nan():
    x = tensor([1.0, 3.0, 3.0, 2.0, math.nan, 9.0])
    top = x.cummax(0)
    assert top.values.tolist()[:4] == [1, 3, 3, 3]
    assert all(map(math.isnan, top.values.tolist()[4:]))
    assert top.indices.tolist() == [0, 1, 2, 2, 4, 4]
    assert ops.cummin(tensor([[3, 1, 1, 2]]), -1).indices.tolist() == [[0, 1, 2, 2]]
    long = tensor(np.random.default_rng(0).integers(0, 99, (3, 100)))
    assert (long.cummax(1).values.numpy() == np.maximum.accumulate(long.numpy(), 1)).all()


def test_the_gradient_of_a_running_extreme_adds_up_where_it_was_found():
    x = tensor([1.0, 3.0, 2.0, 0.0], requires_grad=True)
    assert grad(x.cummax(0).values.sum(), x)[0].tolist() == [1, 3, 0, 0]


def test_the_kth_value_the_most_frequent_and_both_ends():
    x = tensor([[4.0, 1.0, math.nan, 1.0], [2.0, 2.0, 7.0, 7.0]])
    assert ops.kthvalue(x, 2).values.tolist() == [1, 2]
    assert math.isnan(ops.kthvalue(x, 4).values[0].item())
    assert ops.mode(x).values.tolist() == [1, 2]
    assert ops.mode(x).indices.tolist() == [3, 1]
    low, high = ops.aminmax(x[1])
    assert (low.item(), high.item()) == (2, 7)
    assert x[1].aminmax(dim=0, keepdim=True).max.tolist() == [7]


def test_nan_counts_as_nothing_in_sums_and_not_at_all_in_means():
    x = tensor([[1.0, math.nan, 3.0], [math.nan, math.nan, math.nan]], requires_grad=True)
    assert ops.nansum(x).item() == 4
    assert ops.nanmean(x, 1).tolist()[0] == 2
    assert math.isnan(ops.nanmean(x, 1).tolist()[1])
    assert grad(ops.nanmean(x, 1)[0], x)[0].tolist() == [[0.5, 0, 0.5], [0, 0, 0]]
    assert ops.nansum(tensor([1, 2])).dtype == int64
    assert ops.nanmedian(tensor([math.nan, 7.0, 1.0, 3.0])).item() == 3
    assert ops.nanmedian(x, 1).values.tolist()[0] == 1
    much = ops.full((4096,), 64.0, dtype=float16)
    assert ops.nanmean(much).item() == 64  # whose sum float16 does not hold


def test_a_histogram_counts_what_lies_within_and_the_end_in_the_last_part():
    x = tensor([-9.0, 0.0, 0.5, 1.0, 1.0, 2.0, 9.0, math.nan])
    assert ops.histc(x, 2, 0, 2).tolist() == [2, 3]
    assert ops.histc(x[:-1], 3).tolist() == [1, 5, 1]
    assert ops.histc(tensor([3.0, 3.0]), 4).tolist() == [0, 0, 2, 0]
    assert ops.histc(ops.zeros(0), 3).tolist() == [0, 0, 0]


@pytest.mark.cpu
def test_wrong_ranks_are_told_in_a_line():
    x = ops.ones(2, 3)
    for call, error in (
        (lambda: x.kthvalue(4), RangeError),
        (lambda: x.kthvalue(0), RangeError),
        (lambda: x.cummax(2), RangeError),
        (lambda: ops.zeros(0).mode(), ShapeError),
        (lambda: ops.nanmean(tensor([1])), DTypeError),
        (lambda: ops.histc(tensor([1])), DTypeError),
        (lambda: ops.histc(x, 0), ArgumentError),
        (lambda: ops.histc(x, 3, 2, 1), ArgumentError),
    ):
        with pytest.raises(error, match=r"^[a-z_]+: needs .+, got "):
            call()


@pytest.mark.cpu  # a GPU is not asked whether a range is finite
def test_bounds_that_16_bits_do_not_hold_stay_as_they_are():
    x = tensor([1.0, -3.0, 2.0, 60000.0]).to(float16)
    assert ops.histc(x, 7, -(2**63), 2.0).tolist() == [0, 0, 0, 0, 0, 0, 3]
    assert ops.histc(x, 4, 0, 1e30).tolist() == [3, 0, 0, 0]
    assert ops.histc(x, 4, 1.0001, 1.0002).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("function", [ops.median, ops.nanmedian])
def test_the_median_of_all_elements_shares_its_gradient_among_those_that_equal_it(function):
    x = tensor([[1.0, 0.0, 1.0], [0.0, 2.0, 1.0]], requires_grad=True)
    function(x).backward(tensor(6.0))
    assert x.grad.tolist() == [[2, 0, 2], [0, 0, 2]]
    x = tensor([math.nan, math.nan], requires_grad=True)
    y = function(x)
    y.backward()
    assert math.isnan(y.item()) and x.grad.tolist() == [0.5, 0.5]
    x = tensor([math.nan, 3.0, 1.0], requires_grad=True)
    function(x).backward()
    assert x.grad.tolist() == ([1, 0, 0] if function is ops.median else [0, 0, 1])

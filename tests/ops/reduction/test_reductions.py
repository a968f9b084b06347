"""Reductions and order: precision, integers, ties, wrong arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32, int64
from ampkit.base.errors import DTypeError, RangeError, ShapeError
from ampkit.core.autograd.tape import grad
from ampkit.core.policy import autocast
from ampkit.testing import gradcheck, gradgradcheck


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_sums_of_16_bit_tensors_are_carried_in_float32(dtype):
    x = Tensor(np.ones(4096, dtype))
    for out in (x.sum(), x.cumsum(0)[-1], x.mean() * 4096, x.norm() ** 2):
        assert out.dtype == dtype
        assert out.item() == 4096


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.bool_, np.int64])
def test_integers_and_bool_are_summed_in_int64(dtype):
    x = Tensor(np.full(300, 1, dtype))
    for out in (x.sum(), x.cumsum(0)[-1], x.count_nonzero()):
        assert (out.dtype, out.item()) == (int64, 300)
    assert x.prod().dtype == int64


def test_an_explicit_dtype_wins_also_in_autocast():
    x = Tensor(np.ones(4, np.float16))
    with autocast(dtype="float16"):
        assert x.sum().dtype == float32
        assert x.sum(dtype=float16).dtype == float16
        assert x.mean().dtype == float16
        assert x.mean(dtype="float64").dtype == np.float64
    assert tensor([1, 2]).sum(dtype=float32).dtype == float32


SUMMED = {
    "sum": (lambda x, d: x.sum(dtype=d), {"int32": 303, "int16": 303, "uint8": 47, "bool": True}),
    "sum over an axis": (lambda x, d: x.sum(0, True, dtype=d), {"int16": [303]}),
    "nansum": (lambda x, d: ops.nansum(x, dtype=d), {"int32": 303, "bool": True}),
    "prod": (lambda x, d: x.prod(dtype=d), {"int32": 600, "uint8": 88, "bool": True}),
    "cumsum": (lambda x, d: x.cumsum(0, dtype=d), {"int32": [300, 302, 303], "uint8": [44, 46, 47]}),
    "cumprod": (lambda x, d: x.cumprod(0, dtype=d), {"int16": [300, 600, 600], "uint8": [44, 88, 88]}),
}


@pytest.mark.parametrize("name", SUMMED)
def test_an_integer_dtype_truncates_the_input_wraps_around_and_is_the_answers(name):
    reduce, wanted = SUMMED[name]
    for dtype, want in wanted.items():
        out = reduce(tensor([300.0, 2.0, 1.7]), dtype)
        assert (out.dtype.name, out.tolist()) == (dtype, want)


@pytest.mark.parametrize("name", ["mean", "nanmean", "norm", "linalg_norm"])
def test_what_is_no_whole_number_has_no_integer_dtype(name):
    with pytest.raises(DTypeError, match="needs a floating-point"):
        getattr(ops, name)(tensor([1.0, 2.5]), dtype="int64")
    with pytest.raises(DTypeError, match="needs a floating-point dtype, got dtype=int32"):
        ops.softmax(tensor([1.0, 2.5]), 0, dtype="int32")


def test_variance_is_accurate_far_from_zero():
    x = np.float32(1e4) + np.random.default_rng(0).normal(size=1000).astype(np.float32)
    truth = x.astype(np.float64).var(ddof=1)
    assert abs(Tensor(x).var().item() - truth) < 1e-5 * truth
    assert math.isnan(tensor([1.0]).var().item())
    assert tensor([1.0]).var(correction=0).item() == 0


def test_the_deviation_of_equal_values_passes_no_gradient():
    x = tensor([2.0, 2.0], requires_grad=True)
    assert grad(x.std(), x)[0].tolist() == [0, 0]
    assert grad((x - 2).norm(), x)[0].tolist() == [0, 0]


def test_extremes_name_their_parts_take_the_first_of_equal_values_and_let_nan_win():
    x = tensor([[1.0, 3.0, 3.0], [2.0, math.nan, 9.0]])
    found = x.max(1)
    assert found.indices.tolist() == [1, 1]
    assert found.values.tolist()[0] == 3
    assert math.isnan(found.values[1].item())
    assert math.isnan(x.max().item())
    values, indices = tensor([4, 2, 2]).min(0, keepdim=True)
    assert (values.tolist(), indices.tolist()) == ([2], [1])
    assert ops.max(tensor([1.0, 5.0]), tensor([3.0, 2.0])).tolist() == [3, 5]


def test_equal_extremes_share_the_gradient_of_the_whole_and_the_first_takes_it_along_an_axis():
    x = tensor([[1.0, 3.0, 3.0]], requires_grad=True)
    assert grad(x.max(), x)[0].tolist() == [[0, 0.5, 0.5]]
    assert grad(x.max(1).values.sum(), x)[0].tolist() == [[0, 1, 0]]


@pytest.mark.cpu
@pytest.mark.parametrize("values", [[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [1.5, -2.0, 0.5]])
def test_products_are_differentiated_exactly_through_zeros(values):
    x = Tensor(np.array(values), requires_grad=True)
    for function in (ops.prod, lambda x: ops.cumprod(x, 0)):
        gradcheck(function, [x])
        gradgradcheck(function, [x])


def test_axes_out_of_range_or_twice_raise():
    x = Tensor(np.ones((2, 3), np.float32))
    for call in (x.sum, x.mean, x.var, x.argmax, x.max, x.cumsum, x.any, x.sort, x.norm):
        with pytest.raises(RangeError, match=r"\w+: needs dim from -2 to 1"):
            call(dim=2)
    with pytest.raises(ShapeError, match="each dim once"):
        x.sum((0, -2))
    with pytest.raises(DTypeError, match="dim as an integer"):
        x.sum(1.5)


def test_nothing_has_no_mean_and_no_extreme():
    x = Tensor(np.ones((0, 3), np.float32))
    for call in (x.mean, x.argmax, x.amax, x.max):
        with pytest.raises(ShapeError, match="at least one element"):
            call()
    assert x.sum().item() == 0
    assert x.prod().item() == 1
    assert x.sum(1).shape == (0,)


def test_sorting_is_stable_in_both_directions_and_topk_refuses_more_than_there_is():
    x = tensor([3, 1, 3, 1])
    assert x.sort().indices.tolist() == [1, 3, 0, 2]
    assert x.sort(descending=True).indices.tolist() == [0, 2, 1, 3]
    assert x.argsort(descending=True).tolist() == [0, 2, 1, 3]
    assert x.topk(3).values.tolist() == [3, 3, 1]
    assert x.topk(1, largest=False).indices.tolist() == [1]
    with pytest.raises(RangeError, match="k from 0 to 4"):
        x.topk(5)


def test_running_sums_of_exponentials_do_not_overflow_and_take_nothing_from_minus_infinity():
    x = tensor([-math.inf, 1000.0, 1000.0, -math.inf], requires_grad=True)
    out = ops.logcumsumexp(x, 0)
    assert out.tolist() == [-math.inf, 1000, pytest.approx(1000 + math.log(2)), pytest.approx(1000 + math.log(2))]
    assert grad(out[1:].sum(), x)[0].tolist() == pytest.approx([0, 2, 1, 0], rel=1e-4)


def test_the_gradient_of_running_sums_of_exponentials_is_that_of_unrounded_sums():
    x = tensor(np.array([100.0, 100.0, 100.0, 100.0]), dtype=bfloat16, requires_grad=True)
    (gradients,) = grad(ops.logcumsumexp(x, 0), x, tensor([0.0, 0.0, 0.0, 1.0], dtype=bfloat16))
    assert gradients.tolist() == pytest.approx([0.25] * 4, rel=4e-3)

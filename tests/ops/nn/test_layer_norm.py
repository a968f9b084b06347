"""Norms: accuracy beside a large mean, running statistics, and what has no statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import ArgumentError, RangeError, ShapeError
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.autograd.tape import grad
from ampkit.core.policy import Policy, autocast
from ampkit.testing import assert_close


def _batch_norm64(x):
    axes = (0, *range(2, x.ndim))
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def _buffers(channels=3, dtype=np.float32):
    return Tensor(np.zeros(channels, dtype)), Tensor(np.ones(channels, dtype))


@pytest.mark.parametrize("mean", [0, 1e3, 1e5, 3e6])
@pytest.mark.parametrize("shape", [(64, 3), (8, 3, 5, 5)])
def test_batch_norm_is_accurate_beside_a_large_mean(mean, shape):
    x = (mean + np.random.default_rng(0).normal(size=shape)).astype(np.float32)
    assert_close(ops.batch_norm(Tensor(x), None, None, training=True), _batch_norm64(x.astype(np.float64)))
    dy = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    assert_close(
        _batch_norm_gradient(x, dy), _batch_norm_gradient(x.astype(np.float64), dy.astype(np.float64)), (1e-4, 1e-5)
    )


def _batch_norm_gradient(x, dy):
    x = Tensor(x, requires_grad=True)
    return grad(ops.batch_norm(x, None, None, training=True), x, Tensor(dy))[0]


def test_running_statistics_move_in_place_by_momentum_with_the_unbiased_variance():
    x = np.random.default_rng(0).normal(2, 3, (4, 3, 5)).astype(np.float32)
    mean, var = _buffers()
    memory, version = mean.array, mean._version_counter[0]
    with no_grad():
        ops.batch_norm(Tensor(x), mean, var, training=True, momentum=0.25)
    assert mean.array is memory
    assert mean._version_counter[0] > version
    assert var._version_counter[0] > version
    wide = x.astype(np.float64)
    assert_close(mean, 0.25 * wide.mean((0, 2)))
    assert_close(var, 0.75 + 0.25 * wide.var((0, 2), ddof=1))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_batch_that_is_not_finite_leaves_the_running_statistics_alone(poison):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    x[1, 2] = poison
    mean, var = _buffers()
    out = ops.batch_norm(Tensor(x), mean, var, training=True)
    assert np.array_equal(mean.array, [0, 0, 0])
    assert np.array_equal(var.array, [1, 1, 1])
    assert np.isnan(out.array[:, 2]).any()
    assert np.isfinite(out.array[:, :2]).all()


def test_a_variance_beyond_float32_leaves_the_running_statistics_alone():
    x = np.float32([[1e30], [-1e30]])
    mean, var = _buffers(1)
    ops.batch_norm(Tensor(x), mean, var, training=True)
    assert mean.array == 0
    assert var.array == 1


@pytest.mark.cpu
def test_batch_norm_answers_in_its_input_s_dtype_with_statistics_in_float32():
    x = Tensor(np.random.default_rng(0).normal(300, 1, (64, 3)).astype(np.float16))
    weight, (mean, var) = tensor([1.0, 2, 3]), _buffers()
    with autocast(dtype=bfloat16):
        out = ops.batch_norm(x, mean, var, weight, training=True)
    assert out.dtype == float16
    assert_close(out, _batch_norm64(x.array.astype(np.float64)) * [1, 2, 3])
    assert_close(mean, 0.1 * x.array.astype(np.float64).mean(0))


@pytest.mark.parametrize("count", [3, 7, 11, 49, 77, 1001])
def test_a_constant_channel_has_no_negative_variance(count):
    values = np.float32([0.0, 0.1, 1e3, 1e7 / 3, 1e9 / 3, 1e11 / 3])
    mean, var = _buffers(6)
    ops.batch_norm(Tensor(np.tile(values, (count, 1))), mean, var, training=True, momentum=1.0)
    assert np.all(var.array >= 0)
    assert_close(mean, values)


def test_one_value_per_channel_has_no_statistics():
    with pytest.raises(ShapeError, match="more than one value per channel in training"):
        ops.batch_norm(Tensor(np.ones((1, 3))), *_buffers(), training=True)
    assert ops.batch_norm(Tensor(np.ones((1, 3))), *_buffers(dtype=np.float64)).shape == (1, 3)


def test_batch_norm_refuses_misfit_arguments():
    with pytest.raises(ArgumentError, match="running_mean and running_var, got None"):
        ops.batch_norm(Tensor(np.ones((2, 3))), None, None)
    with pytest.raises(ShapeError, match=r"\[N, C, ...\], got \(3,\)"):
        ops.batch_norm(Tensor(np.ones(3)), None, None, training=True)
    with pytest.raises(ShapeError, match=r"weight of shape \(3,\), got \(2,\)"):
        ops.batch_norm(Tensor(np.ones((2, 3))), None, None, Tensor(np.ones(2)), training=True)


NORMS = [lambda x: ops.layer_norm(x, 8), lambda x: ops.rms_norm(x, 8), lambda x: ops.group_norm(x, 1)]


@pytest.mark.parametrize("norm", NORMS, ids=["layer", "rms", "group"])
def test_norms_compute_in_float32_and_answer_so_in_autocast(norm):
    x = Tensor(np.random.default_rng(0).normal(0, 300, (4, 8)).astype(np.float16))
    want = norm(Tensor(x.array.astype(np.float64)))
    assert norm(x).dtype == float16
    assert_close(norm(x), want)
    with autocast(dtype=float16):
        assert norm(x).dtype == float32
        assert_close(norm(x), want)
    with autocast(policy=Policy.fast("bfloat16")):
        assert norm(x).dtype == bfloat16


def test_nan_stays_in_its_row():
    x = np.random.default_rng(0).normal(size=(3, 4))
    x[1, 2] = np.nan
    for out in (ops.layer_norm(Tensor(x), 4), ops.rms_norm(Tensor(x), 4), ops.normalize(Tensor(x))):
        assert np.isnan(out.array[1]).all()
        assert np.isfinite(out.array[[0, 2]]).all()


def test_rms_norm_without_eps_uses_the_machine_epsilon_it_computes_with():
    x = np.full((1, 4), 1e-3, np.float32)
    want = x / np.sqrt(np.square(x, dtype=np.float64).mean() + np.finfo(np.float32).eps)
    assert_close(ops.rms_norm(Tensor(x), 4), want)


def test_norms_refuse_shapes_that_do_not_fit_and_empty_rows():
    x = Tensor(np.ones((2, 3, 4)))
    with pytest.raises(ShapeError, match=r"trailing axes are \(3,\), got shape \(2, 3, 4\)"):
        ops.layer_norm(x, 3)
    with pytest.raises(ShapeError, match=r"weight of shape \(4,\), got \(3,\)"):
        ops.rms_norm(x, 4, Tensor(np.ones(3)))
    with pytest.raises(ShapeError, match="rows of at least one element"):
        ops.layer_norm(Tensor(np.ones((2, 0))), 0)
    with pytest.raises(ShapeError, match="num_groups=2"):
        ops.group_norm(x, 2)
    with pytest.raises(ShapeError, match="groups of at least one element"):
        ops.group_norm(Tensor(np.ones((2, 4, 0))), 2)


def test_normalize_divides_by_the_norm_or_by_eps():
    assert_close(ops.normalize(tensor([[3.0, 4.0], [0.0, 0.0]])), np.float32([[0.6, 0.8], [0, 0]]))
    with pytest.raises(RangeError, match="dim from -1 to 0, got 1"):
        ops.normalize(tensor([1.0]))
    assert ops.normalize(Tensor(np.ones((2, 0)))).shape == (2, 0)
    with pytest.raises(ArgumentError, match="p as a number, got nan"):
        ops.normalize(tensor([[1.0]]), p=math.nan)
    with pytest.raises(ShapeError, match="at least one element along dim 1 for this p"):
        ops.normalize(Tensor(np.ones((2, 0))), p=math.inf)


@pytest.mark.parametrize(("p", "norm"), [(0.0, 2.0), (-1.0, 0.75), (math.inf, 3.0), (-math.inf, 1.0)])
def test_normalize_takes_every_order_of_a_norm(p, norm):
    assert ops.normalize(tensor([[1.0, -3.0]]), p=p).tolist() == [pytest.approx([1 / norm, -3 / norm])]


def test_batch_norm_needs_a_positive_eps():
    for eps in (0.0, -1.0, math.nan):
        with pytest.raises(ArgumentError, match="batch_norm: needs a positive eps"):
            ops.batch_norm(Tensor(np.ones((2, 3))), *_buffers(), training=True, eps=eps)

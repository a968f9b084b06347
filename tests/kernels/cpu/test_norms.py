"""Norms by compiled kernels: values and gradients are those of float64, and what is not finite stays alone."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.policy import Policy, autocast
from ampkit.core.tensor import Tensor
from ampkit.ops.nn.batch_norm import update_running_statistics
from ampkit.testing import Case, assert_close, check_precision, normal

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

CASES = [
    Case("rms_norm", normal(1400, 96), (96,), normal(96)),
    Case("rms_norm", normal(1400, 96), (96,), normal(96), eps=0.5),
    Case("rms_norm", normal(7, 200, 101), 101),
    Case("rms_norm", normal(3, 50000), (50000,), normal(50000)),
]


GROUPS = [
    Case("group_norm", normal(4, 24, 40, 41), 6, normal(24), normal(24)),
    Case("group_norm", normal(4, 24, 40, 41), 1, eps=0.3),
    Case("group_norm", normal(3, 8, 7000), 8, normal(8)),
    Case("group_norm", normal(70, 2000), 20, normal(2000), normal(2000)),
]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", [*CASES, *GROUPS], ids=repr)
def test_values_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    check_precision(case, dtype)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_kernels_are_what_runs(case, dtype):
    (out,) = case(*case.tensors(dtype))
    assert out.node.kernel.name == "rms_norm_cpu"
    backward, needs = out.node.op.backward_primitive, out.node.op.needs(out.node)
    params = {"normalized_shape": case.inputs[1], "eps": None}
    kernel = backward.select("cpu", out.array, out.node.saved, needs, **params)
    assert kernel.name == "rms_norm_backward_cpu"
    kernel.run(out.array, out.node.saved, needs, **params)  # raises where it declines


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_rows_that_are_not_finite_zero_or_huge_come_out_as_in_the_reference(dtype):
    rng = np.random.default_rng(0)
    values, gradients = (rng.standard_normal((1500, 90)).astype(dtype) for _ in range(2))
    values[1, 3], values[2, 0], values[3, 89], values[4], values[5] = np.nan, np.inf, -np.inf, 0, 1e25
    values[6], gradients[7, 5], gradients[8, 1] = 1e-30, np.nan, np.inf

    def run(rows):
        x, weight = Tensor(values[rows], True), Tensor(np.linspace(1, 2, 90, dtype=np.float32), True)
        y = ops.rms_norm(x, 90, weight)
        return y.detach(), *grad(y, [x, weight], Tensor(gradients[rows].astype(y.dtype)))

    found = run(slice(None))
    with reference_only():
        truth = run(slice(None))
    for got, want in zip(found, truth, strict=True):
        got, want = got.numpy().astype(float), want.numpy().astype(float)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got, want, rtol=2e-2 if dtype == bfloat16 else 1e-4, atol=1e-3)
    assert np.flatnonzero(np.isnan(found[0].numpy().astype(float)).any(1)).tolist() == [1, 2, 3]


def test_the_gradient_of_a_weight_alone_and_of_the_input_alone():
    values = np.random.default_rng(0).standard_normal((1500, 90)).astype(np.float32)

    def run(first, second):
        x, weight = Tensor(values, first), Tensor(np.linspace(1, 2, 90, dtype=np.float32), second)
        y = ops.rms_norm(x, 90, weight)
        return grad(y, [t for t in (x, weight) if t.requires_grad], Tensor(values))

    for asked in ((True, False), (False, True)):
        found = run(*asked)
        with reference_only():
            truth = run(*asked)
        assert_close(found[0], truth[0])


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("case", GROUPS, ids=repr)
def test_the_kernels_of_group_norm_are_what_runs(case, dtype):
    (out,) = case(*case.tensors(dtype))
    assert out.node.kernel.name == "group_norm_cpu"
    backward, needs = out.node.op.backward_primitive, out.node.op.needs(out.node)
    params = {"num_groups": case.inputs[1], "eps": 1e-5}
    kernel = backward.select("cpu", out.array, out.node.saved, needs, **params)
    assert kernel.name == "group_norm_backward_cpu"
    kernel.run(out.array, out.node.saved, needs, **params)  # raises where it declines


def test_a_group_far_from_zero_keeps_its_digits_and_one_that_is_not_finite_stays_alone():
    rng = np.random.default_rng(0)
    values, gradients = (rng.standard_normal((4, 24, 40, 40)).astype(np.float32) for _ in range(2))
    values[1] += 1000
    values[2, 5, 0, 0] = np.nan

    def run(dtype):
        given = values.astype(dtype), np.linspace(1, 2, 24).astype(dtype)
        x, weight = (Tensor(array, True) for array in given)
        y = ops.group_norm(x, 6, weight)
        return y, *grad(y, [x, weight], Tensor(gradients.astype(dtype)))

    found, truth = run(np.float32), run(float)
    assert found[0].node.kernel.name == "group_norm_cpu"
    for got, want in zip(found[:2], truth[:2], strict=True):
        got, want = got.detach().numpy(), want.detach().numpy()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    assert np.isnan(found[0].detach().numpy()).sum() == 4 * 1600
    assert np.isnan(found[2].numpy()).sum() == 4
    np.testing.assert_allclose(found[2].numpy()[:4], truth[2].numpy()[:4], rtol=1e-3)


# batch norm with ReLU


def images(dtype, seed=0):
    return np.moveaxis(np.random.default_rng(seed).standard_normal((3, 33, 40, 24)).astype(dtype), -1, 1)


WEIGHT, BIAS = np.linspace(-1, 2, 24, dtype=np.float32), np.linspace(-1, 1, 24, dtype=np.float32)


def normalized(function, values, dtype=float32, weight=WEIGHT):
    """The answer of `function`, and the gradients."""
    x, w, b = (Tensor(array, True) for array in (values, weight, BIAS))
    y = function(x, None, None, w, b, True)
    return y, *grad(y, [x, w, b], Tensor(images(dtype, 1)))


def apart(*given):
    return ops.relu(ops.batch_norm(*given))


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_batch_norm_with_relu_gives_the_bits_of_the_two_in_one_pass(dtype):
    found, truth = (normalized(f, images(dtype), dtype) for f in (ops.batch_norm_relu, apart))
    assert found[0].node.kernel.name == "batch_norm_cpu"
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_array_equal(got.array, want.array)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_relu_behind_batch_norm_hides_nothing_that_is_not_finite(poison):
    values, weight = images(float32), WEIGHT.copy()
    values[1, 3, 2, 5], weight[7] = poison, np.nan
    found = normalized(ops.batch_norm_relu, values, weight=weight)[0].array
    with reference_only():
        truth = normalized(apart, values, weight=weight)[0].array
    assert np.isnan(found[:, 3]).all()
    np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-5)


def test_gradients_that_relu_holds_back_may_be_anything():
    values, gradients = images(float32), images(float32, 1)
    x = Tensor(values, True)
    y = ops.batch_norm_relu(x, None, None, None, None, True)
    plain = grad(y, x, Tensor(gradients), retain_graph=True)[0]
    held = np.where(y.array == 0, np.nan, gradients)
    np.testing.assert_array_equal(grad(y, x, Tensor(held))[0].array, plain.array)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("function", [ops.batch_norm, ops.batch_norm_relu])
def test_given_statistics_serve_with_relu_and_without_and_nan_passes(function, dtype):
    values, statistics = (
        images(dtype),
        (np.linspace(-1, 1, 24, dtype=np.float32), np.linspace(0.5, 2, 24, dtype=float32)),
    )
    values[1, 3, 2, 5] = np.nan

    def run(place):
        x, mean, var, w, b = (
            Tensor(place(a), i in (0, 3, 4)) for i, a in enumerate((values, *statistics, WEIGHT, BIAS))
        )
        y = function(x, mean, var, w, b)
        return y, *grad(y.nan_to_num(), [x, w, b], Tensor(place(images(dtype, 1))), retain_graph=True)

    found, truth = run(lambda a: a), run(lambda a: a.astype(float))
    assert found[0].node.kernel.name == "batch_norm_cpu" and np.isnan(found[0].array.astype(float)).sum() == 1
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_allclose(
            got.array.astype(float), want.array, rtol=2e-2 if dtype == bfloat16 else 1e-4, atol=2e-2
        )


@pytest.mark.parametrize("relu", [False, True])
def test_a_policy_that_wants_batch_norm_in_float32_gets_it(relu):
    function, statistics = ops.batch_norm_relu if relu else ops.batch_norm, [Tensor(np.ones(24, np.float32))] * 2
    x = Tensor(images(bfloat16))
    with autocast(policy=Policy("bfloat16", batch_norm="float32")):
        for out in (function(x, *statistics), function(x, None, None, training=True)):
            assert out.dtype == float32 and np.isfinite(out.array).all()


@pytest.mark.parametrize("wild", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [2, 3], ids=["mean", "variance"])
@pytest.mark.parametrize("step", [1, 3], ids=["contiguous", "strided"])
def test_running_statistics_have_the_bits_of_the_reference(step, place, wild):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(step * 300).astype(np.float32)[::step] for _ in range(4)]
    if wild is not None:
        arrays[place][7] = wild
    found, expected = ([np.repeat(array, step)[::step] for array in arrays] for _ in range(2))
    assert update_running_statistics.select("cpu", *found, 1.07, 0.1).name == "update_running_statistics_cpu"
    update_running_statistics(*found, 1.07, 0.1)
    update_running_statistics.reference.run(*expected, 1.07, 0.1)
    for each, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each, other)
    assert (found[0] == arrays[0]).all() == (wild is not None)

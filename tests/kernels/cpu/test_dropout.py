"""Dropout in one pass gives what the reference gives, bit for bit: the same elements, NaN where a product has it."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.ops.nn.dropout import dropout_

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

VALUES = np.random.default_rng(0).standard_normal((90, 30, 50))
VALUES[0, 0, :30] = np.repeat([np.nan, np.inf, -np.inf], 10)
SLOPES = np.random.default_rng(1).standard_normal(VALUES.shape)
SLOPES[1, 0, :30] = VALUES[0, 0, :30]


def _run(values, gradients, p):
    ampkit.manual_seed(5)
    x = Tensor(values, requires_grad=True)
    y = ops.dropout(x, p)
    selected = y.node.op.backward_primitive.select(
        "cpu", gradients, y.node.saved, (x.dtype,), p=p, seed=0, call=0, shape=None
    )
    return (y.node.kernel.name, selected.name), y.detach().numpy(), grad(y, [x], Tensor(gradients))[0].numpy()


def _equal(found, truth):
    assert found.dtype == truth.dtype
    np.testing.assert_array_equal(found.astype(float), truth.astype(float))


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_values_and_gradients_are_those_of_the_reference(dtype, p):
    given = VALUES.astype(dtype), SLOPES.astype(dtype), p
    names, *found = _run(*given)
    assert names == ("dropout_cpu", "dropout_backward_cpu")
    with reference_only():
        names, *truth = _run(*given)
    assert names == ("dropout_", "dropout_backward")
    for got, want in zip(found, truth, strict=True):
        _equal(got, want)
        assert np.isnan(got.astype(float)).any()


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
def test_the_mask_follows_axes_that_lie_in_another_order(dtype):
    given = VALUES.astype(dtype).transpose(2, 0, 1), SLOPES.astype(dtype).transpose(2, 0, 1), 0.3
    names, *found = _run(*given)
    assert names == ("dropout_cpu", "dropout_backward_cpu")
    with reference_only():
        _, *truth = _run(*given)
    for got, want in zip(found, truth, strict=True):
        _equal(got, want)


TURNS = {
    "every other": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "backwards": lambda a: a[::-1],
    "the same": lambda a: np.broadcast_to(a[:1], a.shape),
}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16], ids=str)
def test_any_format_and_layout_gives_what_the_reference_gives(turn, dtype):
    given = TURNS[turn](VALUES.astype(dtype)), TURNS[turn](SLOPES.astype(dtype)), 0.3
    names, *found = _run(*given)
    with reference_only():
        wanted, *truth = _run(*given)
    assert dtype != float64 or names == wanted
    for got, want in zip(found, truth, strict=True):
        _equal(got, want)


def test_whole_channels_are_dropped_by_the_kernel():
    y = ops.dropout2d(Tensor(np.ones((8, 64, 20, 20), np.float32), requires_grad=True), 0.5)
    assert y.node.kernel.name == "dropout_cpu"
    assert (y.array.reshape(512, 400).std(1) == 0).all()


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("shape", [(6, 1, 1, 1), (6, 32, 1, 1), (1, 1, 30, 40)])
def test_a_mask_for_several_values_drops_what_the_reference_drops(shape, dtype):
    values, gradients = np.random.default_rng(0).standard_normal((2, 6, 32, 30, 40)).astype(dtype)
    values[1, 2, 3, 4] = np.nan

    def run():
        x = Tensor(np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -1)), -1, 1), requires_grad=True)
        y = dropout_(x, 0.3, 5, 2, shape)
        return y.node.kernel.name, y.array, grad(y, x, Tensor(gradients))[0].array

    name, *found = run()
    assert name == "dropout_cpu"
    with reference_only():
        _, *truth = run()
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_array_equal(got.astype(float), want.astype(float))

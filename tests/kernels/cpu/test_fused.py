"""Chains of ops on the CPU: the kernels of their links, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.tensor import Tensor
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

pytestmark = pytest.mark.cpu

SHAPES = (50, 60), (70, 60), (70,), (40, 70), (40,)
DTYPES = pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)


def links(x, weight, bias, weight2, bias2, approximate):
    return ops.linear(ops.gelu(ops.linear(x, weight, bias), approximate), weight2, bias2)


def tensors(dtype):
    rng = np.random.default_rng(0)
    return [Tensor(rng.standard_normal(shape).astype(dtype), True) for shape in SHAPES]


@DTYPES
def test_values_and_gradients_are_those_of_float64_within_tolerance(dtype):
    given = tensors(dtype)
    wide = [Tensor(t.array.astype(float), True) for t in given]
    outs = [ops.linear_gelu_linear(*each, "tanh") for each in (given, wide)]
    pairs = zip(
        *([out.detach(), *grad(out, each, out)] for out, each in zip(outs, (given, wide), strict=True)), strict=True
    )
    for got, want in pairs:  # what lies between is rounded, as a gradient's operands are
        assert_close(got, want, GRADIENT_TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_bits_and_what_is_kept_are_those_of_the_links(dtype, approximate):
    given = tensors(dtype)
    whole, apart = ops.linear_gelu_linear(*given, approximate), links(*given, approximate)
    kept = whole.node.saved
    assert kept.before.dtype == kept.hidden.dtype == dtype and whole.node.kernel.name == "linear_gelu_linear_cpu"
    for got, want in zip((whole, *grad(whole, given, whole)), (apart, *grad(apart, given, apart)), strict=True):
        np.testing.assert_array_equal(got.array, want.array)


@pytest.mark.skipif(library() is None, reason=unavailable_reason())
@pytest.mark.parametrize("position", range(5))
def test_the_gradient_of_one_operand_alone_is_the_same(position):
    given = tensors(float32)
    whole = grad(ops.linear_gelu_linear(*given), given, Tensor(np.ones((50, 40), np.float32)))
    alone = [t if i == position else t.detach() for i, t in enumerate(given)]
    found = grad(ops.linear_gelu_linear(*alone), given[position], Tensor(np.ones((50, 40), np.float32)))
    if given[position].ndim == 1:  # a bias, whose sum may be taken in another order
        np.testing.assert_allclose(found[0].array, whole[position].array, rtol=1e-6, atol=1e-4)
    else:
        np.testing.assert_array_equal(found[0].array, whole[position].array)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_nan_reaches_the_answer(dtype):
    given = tensors(dtype)
    given[0].array[3, 5] = np.nan
    out = ops.linear_gelu_linear(*given).array.astype(np.float32)
    assert np.isnan(out[3]).all() and not np.isnan(np.delete(out, 3, 0)).any()


def test_a_training_step_leaves_the_parameters_that_the_links_leave():
    def trained(run):
        ampkit.manual_seed(0)
        layers = nn.Linear(60, 70), nn.GELU(), nn.Linear(70, 40)
        model = nn.ModuleList(layers)
        optimizer = ampkit.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            with ampkit.autocast(dtype=bfloat16):
                loss = (run(tensors(float32)[0].detach(), *layers).float() ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.numpy(force=True) for p in model.parameters()]

    apart = trained(lambda x, first, gelu, second: second(gelu(first(x))))
    whole = trained(lambda x, a, gelu, b: ops.linear_gelu_linear(x, a.weight, a.bias, b.weight, b.bias))
    for got, want in zip(whole, apart, strict=True):
        np.testing.assert_array_equal(got, want)


def test_widths_that_do_not_meet_are_refused_in_one_line():
    x, weight = Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((4, 3), np.float32))
    with pytest.raises(ampkit.base.errors.ShapeError, match=r"needs weight2 \[out, 4\], got weight2 \[4, 3\]"):
        ops.linear_gelu_linear(x, weight, None, weight)
    with pytest.raises(ampkit.base.errors.ShapeError, match=r"needs bias2 \[3\], got bias2 \[2\]"):
        ops.linear_gelu_linear(x, weight, None, weight.T, Tensor(np.ones(2, np.float32)))

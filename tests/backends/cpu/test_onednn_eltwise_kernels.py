"""sigmoid, tanh and leaky_relu by oneDNN: their digits over the whole range, and what is not finite, as in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.backends.cpu.onednn.primitive import Call
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.testing import Case, check_precision, normal

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

CASES = [
    Case("sigmoid", normal(300, 301)),
    Case("tanh", normal(300, 301)),
    Case("leaky_relu", normal(300, 301), negative_slope=0.1),
]
FUNCTIONS = {
    "sigmoid": (ops.sigmoid, lambda x: 1 / (1 + np.exp(-x)), lambda y, x: y * (1 - y)),
    "tanh": (ops.tanh, np.tanh, lambda y, x: 1 - y * y),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.2), lambda x: x * np.where(x > 0, 1, 0.2), lambda y, x: y / x),
}


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_values_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    check_precision(case, dtype)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_onednn_is_what_runs(case, dtype, monkeypatch):
    ran, run = [], Call.__call__
    monkeypatch.setattr(Call, "__call__", lambda self, *arrays: (ran.append(self), run(self, *arrays)))
    (x,) = case.tensors(dtype)
    (y,) = case(x)
    assert y.node.kernel is not y.node.op.forward.reference
    assert len(ran) == 1
    grad(y, [x], Tensor(np.ones(y.shape, dtype)))
    assert len(ran) == 2


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_digit_over_the_whole_range(name, dtype):
    function, exact, slope = FUNCTIONS[name]
    small = np.geomspace(1e-30, 80, 40000)
    values = np.concatenate([small, -small, np.linspace(-80, 80, 40001)[::3]]).astype(dtype)
    x = Tensor(values, requires_grad=True)
    y = function(x)
    unit = 2.0**-8 if dtype == bfloat16 else 6e-7
    found, wide = y.array.astype(float), values.astype(float)
    np.testing.assert_allclose(found, exact(wide), rtol=unit)
    with np.errstate(invalid="ignore"):
        want = slope(found, wide)  # from the output as it was rounded: that is what is kept
    back = grad(y, [x], Tensor(np.ones(values.shape, dtype)))[0].numpy().astype(float)
    known = np.isfinite(want)
    np.testing.assert_allclose(back[known], want[known], rtol=2.5 * unit, atol=2e-7)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_finite_comes_out_as_in_the_reference_wherever_it_stands(name, dtype):
    function = FUNCTIONS[name][0]
    rng = np.random.default_rng(0)
    values, slopes = (rng.standard_normal((300, 301)) for _ in range(2))
    for row, wild in enumerate([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0]):
        values[row, 30:70] = wild
        slopes[row + 10, 30:70] = wild
    values[-1, -3:] = np.nan

    def run():
        x = Tensor(values.astype(dtype), requires_grad=True)
        y = function(x)
        back = grad(y, [x], Tensor(slopes.astype(dtype)))[0]
        return y.detach().numpy().astype(float), back.numpy().astype(float)

    found = run()
    with reference_only():
        truth = run()
    np.testing.assert_allclose(found[0], truth[0], rtol=1e-2)
    where = ~np.isnan(values)  # the slope where NaN went in is nobody's business
    np.testing.assert_allclose(found[1][where], truth[1][where], rtol=2e-2, atol=1e-6)
    if name != "leaky_relu":
        assert np.isnan(found[1][~where]).all()


def test_a_relu_that_does_not_leak_keeps_nan():
    values = np.full((300, 301), np.nan, np.float32)
    assert np.isnan(ops.leaky_relu(Tensor(values), 0.0).numpy()).all()

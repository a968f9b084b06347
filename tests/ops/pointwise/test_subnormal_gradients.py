"""Gradients that follow the sign of an input, where the input is subnormal."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, ops
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.nn import functional

pytestmark = pytest.mark.cpu
FUNCTIONS = {
    "copysign": (lambda x: ops.copysign(x, Tensor(np.full(x.shape, -1.0, x.dtype))), (-1.0, 1.0)),
    "abs": (lambda x: x.abs(), (1.0, -1.0)),
    "neg": (lambda x: -x, (-1.0, -1.0)),
    "clamp": (lambda x: x.clamp(min=0), (1.0, 0.0)),
    "clamp of two sides": (lambda x: x.clamp(-1, 1), (1.0, 1.0)),
    "hardtanh": (lambda x: functional.hardtanh(x, 0.0, 1.0), (1.0, 0.0)),
    "relu": (ops.relu, (1.0, 0.0)),
    "relu6": (functional.relu6, (1.0, 0.0)),
    "relu of a transposed array": (lambda x: ops.relu(x.reshape(2, -1).t()), (1.0, 0.0)),
    "threshold": (lambda x: functional.threshold(x, 0.0, 0.0), (1.0, 0.0)),
    "hardshrink": (lambda x: functional.hardshrink(x, 0.0), (1.0, 1.0)),
    "maximum": (lambda x: ops.maximum(x, zeros(x)), (1.0, 0.0)),
    "minimum": (lambda x: ops.minimum(x, zeros(x)), (0.0, 1.0)),
    "fmax": (lambda x: ops.fmax(x, zeros(x)), (1.0, 0.0)),
    "where": (lambda x: ops.where(x > 0, x, zeros(x)), (1.0, 0.0)),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.5), (1.0, 0.5)),
    "prelu": (lambda x: functional.prelu(x, Tensor(np.full(1, 0.5, x.dtype))), (1.0, 0.5)),
    "elu": (functional.elu, (1.0, 1.0)),
    "sign": (ops.sign, (0.0, 0.0)),
    "amax": (lambda x: ops.amax(x.reshape(-1, 8), -1), (0.125, 0.125)),
    "amin": (lambda x: ops.amin(x.reshape(-1, 8), -1), (0.125, 0.125)),
}
MOVING = {
    **{name: FUNCTIONS[name][0] for name in ("clamp of two sides", "hardshrink", "elu", "amax", "amin")},
    "max": lambda x: x.max(),
    "maximum": lambda x: ops.maximum(x, Tensor(np.full(x.shape, -1.0, x.dtype))),
    "where": lambda x: ops.where(Tensor(np.ones(x.shape, bool)), x, zeros(x)),
    "masked_fill": lambda x: x.masked_fill(Tensor(np.zeros(x.shape, bool)), 0.0),
    "nan_to_num": ops.nan_to_num,
    "max_pool of channels inside": lambda x: functional.max_pool2d(
        x.reshape(1, -1, 2, 2).contiguous(memory_format=ampkit.channels_last), 2
    ),
    "max_pool": lambda x: functional.max_pool1d(x.reshape(1, 1, -1), 2),
    "interpolate": lambda x: functional.interpolate(x.reshape(1, 1, -1), scale_factor=2.0, mode="nearest"),
}


def zeros(x):
    return Tensor(np.zeros(x.shape, x.dtype))


@pytest.mark.parametrize("count", [8, 8000])
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_by_sign_is_right_for_subnormal_inputs(name, dtype, count):
    function, (above, below) = FUNCTIONS[name]
    tiny = 6e-8 if dtype == float16 else 1e-39
    for value, wanted in ((tiny, above), (-tiny, below)):
        x = Tensor(np.full(count, value).astype(dtype), True)
        function(x).sum().backward()
        assert set(np.asarray(x.grad.array, np.float32).tolist()) == {wanted}


@pytest.mark.parametrize("count", [8, 8000])
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", MOVING)
def test_a_function_whose_values_are_elements_keeps_subnormal_ones(name, dtype, count):
    for value in (1.0, -1.0):
        x = np.full(count, value * (6e-8 if dtype == float16 else 1e-39)).astype(dtype)
        found = np.asarray(MOVING[name](Tensor(x)).array, np.float32)
        assert set(found.ravel().tolist()) == {float(x[0])}


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", ["relu", "clamp", "maximum", "threshold", "where"])
def test_a_gradient_that_is_passed_on_stays_subnormal(name, dtype):
    tiny = np.full(5000, 6e-8 if dtype == float16 else 1e-39).astype(dtype)
    x = Tensor(np.ones(5000, dtype), True)
    FUNCTIONS[name][0](x).backward(Tensor(tiny))
    assert set(np.asarray(x.grad.array, np.float32).tolist()) == {float(tiny[0])}

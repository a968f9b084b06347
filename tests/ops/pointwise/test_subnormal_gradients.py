"""Gradients that follow the sign of an input, where the input is subnormal."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, ops
from ampkit.base.dtypes import bfloat16, float16, float32

pytestmark = pytest.mark.cpu
FUNCTIONS = {
    "copysign": (lambda x: ops.copysign(x, Tensor(np.full(x.shape, -1.0, x.dtype))), (-1.0, 1.0)),
    "abs": (lambda x: x.abs(), (1.0, -1.0)),
    "clamp": (lambda x: x.clamp(min=0), (1.0, 0.0)),
    "maximum": (lambda x: ops.maximum(x, Tensor(np.zeros(x.shape, x.dtype))), (1.0, 0.0)),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.5), (1.0, 0.5)),
}


@pytest.mark.parametrize("count", [8, 5000])
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_by_sign_is_right_for_subnormal_inputs(name, dtype, count):
    function, (above, below) = FUNCTIONS[name]
    tiny = 6e-8 if dtype == float16 else 1e-39
    for value, wanted in ((tiny, above), (-tiny, below)):
        x = Tensor(np.full(count, value).astype(dtype), True)
        function(x).sum().backward()
        assert set(np.asarray(x.grad.array, np.float32).tolist()) == {wanted}

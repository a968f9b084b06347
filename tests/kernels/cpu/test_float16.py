"""Functions of float16 and bfloat16 run in float32 and are rounded once."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import models, ops
from ampkit.backends.cpu.native import library as native
from ampkit.backends.cpu.onednn.library import isa, library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(library() is None, reason=unavailable_reason()),
    pytest.mark.skipif(native.library() is None, reason=native.unavailable_reason()),
]
C = 24


def _channels_last(x):
    return x.permute(0, 3, 1, 2)


CALLS = {
    "relu": ops.relu,
    "gelu": ops.gelu,
    "silu": ops.silu,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "leaky_relu": lambda x: ops.leaky_relu(x, 0.1),
    "add": lambda x: x + x.detach(),
    "sub": lambda x: x - (x * 3).detach(),
    "mul": lambda x: x * (x * x).detach(),
    "dropout": lambda x: ops.dropout(x, 0.3, training=True),
    "batch_norm": lambda x: ops.batch_norm(_channels_last(x), None, None, training=True),
    "batch_norm_relu": lambda x: ops.batch_norm_relu(
        _channels_last(x), None, None, Tensor(np.linspace(0.5, 2, C, dtype=np.float32)), training=True
    ),
    "batch_norm_add_relu": lambda x: ops.batch_norm_add_relu(
        _channels_last(x), _channels_last(x * 0.5).detach(), None, None, training=True
    ),
    "layer_norm": lambda x: ops.layer_norm(x, C, Tensor(np.linspace(0.5, 2, C, dtype=np.float32))),
    "rms_norm": lambda x: ops.rms_norm(x, C),
    "softmax": lambda x: ops.softmax(x, -1, dtype=float32),
}


def _there_and_back(call, values, gradients):
    ampkit.manual_seed(0)
    x = Tensor(values, requires_grad=True)
    y = call(x)
    (dx,) = grad(y, [x], Tensor(gradients.reshape(y.shape).astype(y.dtype)))
    return y.node, y.detach().numpy(), dx.numpy()


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_the_references_to_one_rounding(name, dtype):
    rng = np.random.default_rng(0)
    values, gradients = (rng.standard_normal((16, 17, 25, C)).astype(dtype) for _ in range(2))
    node, out, back = _there_and_back(CALLS[name], values, gradients)
    assert node.kernel is not node.op.forward.reference
    with reference_only():
        _, truth, gradient = _there_and_back(CALLS[name], values, gradients)
    unit = 2.0**-10 if dtype == float16 else 2.0**-7
    np.testing.assert_allclose(out.astype(float), truth.astype(float), rtol=1.5 * unit, atol=unit / 64)
    np.testing.assert_allclose(back.astype(float), gradient.astype(float), rtol=1.5 * unit, atol=unit / 16)


@pytest.mark.parametrize("name", ["relu", "gelu", "add", "mul", "dropout", "batch_norm", "layer_norm", "softmax"])
def test_what_is_not_finite_or_overflows_in_float16_shows_as_in_the_reference(name):
    rng = np.random.default_rng(0)
    values, gradients = (rng.standard_normal((16, 17, 25, C)).astype(float16) for _ in range(2))
    values[0, 0, 0, :5] = [np.nan, -np.nan, np.inf, -np.inf, 60000]
    gradients[3, 3, 3, :3] = [np.nan, np.inf, -np.inf]
    _, out, back = _there_and_back(CALLS[name], values, gradients)
    with reference_only(), np.errstate(all="ignore"):
        _, truth, gradient = _there_and_back(CALLS[name], values, gradients)
    np.testing.assert_array_equal(np.isfinite(out), np.isfinite(truth))
    assert np.isnan(out[np.isnan(truth)]).all()
    np.testing.assert_array_equal(np.isfinite(back), np.isfinite(gradient))


def _kernels(name, options, batch, dtype):
    ampkit.manual_seed(0)
    model = getattr(models, name)(**options)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 64, batch) if name == "gpt" else rng.standard_normal(batch).astype(np.float32)
    with ampkit.profile() as found:
        with ampkit.autocast(dtype=dtype, enabled=dtype != "float32"):
            loss = model(ampkit.tensor(x)).float().square().mean()
        loss.backward()
    references = {op: kernel for op, kernel in ((row.name, row.kernel) for row in found.rows) if kernel == op}
    return {row.name for row in found.rows}, set(references)


@pytest.mark.skipif("AVX-512" not in isa() and "AMX" not in isa(), reason="oneDNN has less for AVX2")
@pytest.mark.parametrize(
    ("name", "options", "batch"),
    [
        ("gpt", {"vocab_size": 64, "block_size": 64, "n_layer": 1, "n_head": 2, "n_embd": 64}, (8, 64)),
        ("resnet18", {"num_classes": 10, "stem": "cifar"}, (4, 3, 16, 16)),
        ("convmixer", {"dim": 32, "depth": 1, "kernel_size": 3, "patch_size": 2}, (16, 3, 32, 32)),
    ],
)
def test_no_op_of_a_step_runs_as_its_reference_in_float16_that_does_not_in_bfloat16(name, options, batch):
    ran, slow = _kernels(name, options, batch, "float16")
    also, known = _kernels(name, options, batch, "bfloat16")
    assert ran == also
    assert slow <= known

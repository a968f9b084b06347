"""Ops that run in blocks give what their references give over the whole array, bit for bit, there and back."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.backends.cpu.blockwise import BLOCK
from ampkit.backends.cpu.onednn import eltwise
from ampkit.core.dispatch import reference_only
from ampkit.core.op import ops as registered

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def no_other_kernels(monkeypatch):
    monkeypatch.setattr(eltwise, "fits", lambda *arrays: False)


CALLS = {
    "celu": lambda x: ops.celu(x, 0.7),
    "elu": lambda x: ops.elu(x, 0.7),
    "gelu": lambda x: ops.gelu(x, approximate="tanh"),
    "hardshrink": lambda x: ops.hardshrink(x, 0.3),
    "hardsigmoid": ops.hardsigmoid,
    "hardswish": ops.hardswish,
    "hardtanh": lambda x: ops.hardtanh(x, -0.1, 2.3),
    "leaky_relu": lambda x: ops.leaky_relu(x, 0.2),
    "logsigmoid": ops.logsigmoid,
    "mish": ops.mish,
    "selu": ops.selu,
    "sigmoid": ops.sigmoid,
    "silu": ops.silu,
    "softplus": lambda x: ops.softplus(x, beta=2.0),
    "softshrink": lambda x: ops.softshrink(x, 0.3),
    "softsign": ops.softsign,
    "tanhshrink": ops.tanhshrink,
}


def test_every_op_that_runs_in_blocks_is_tried_here():
    in_blocks = {
        name for name, op in registered.items() if any(b.name == "blocks" for b in op.forward.kernels_of("cpu"))
    }
    assert in_blocks == set(CALLS)


def _there_and_back(call, values, dtype):
    x = ampkit.tensor(values, dtype=dtype, requires_grad=True)
    y = call(x)
    weights = ampkit.tensor(np.linspace(-1, 1, values.size).reshape(values.shape), dtype=dtype)
    y.backward(weights)
    return y.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("dtype", [ampkit.float64, ampkit.float32, ampkit.float16, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_blocks_give_what_the_reference_gives(name, dtype):
    # Two blocks and a part of one, with the values that saturate and overflow.
    values = np.random.default_rng(0).normal(0, 4, (3, BLOCK - 1000))
    values[0, :10] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e5, -0.1, 2.3, 0.3, -0.3]
    found = _there_and_back(CALLS[name], values, dtype)
    with reference_only():
        expected = _there_and_back(CALLS[name], values, dtype)
    for ours, truth in zip(found, expected, strict=True):
        assert ours.dtype == truth.dtype == dtype
        assert ours.tobytes() == truth.tobytes() or np.array_equal(ours, truth, equal_nan=True)


@pytest.mark.parametrize(
    "view", [lambda a: a[:, ::2], lambda a: a.T, lambda a: a[:1, :100]], ids=["strided", "turned", "small"]
)
def test_what_does_not_lie_in_one_piece_or_is_small_is_left_to_the_reference(view):
    values = np.ones((4, BLOCK), np.float32)
    op = registered["silu"]
    kernel = op.forward.kernels_of("cpu")[-1]
    assert kernel.when(values) and not kernel.when(view(values))


GATES = {
    "glu of columns": lambda x, w: ops.glu(x, -1),
    "glu of long rows": lambda x, w: ops.glu(x, 1),
    "glu of the first": lambda x, w: ops.glu(x, 0),
    "prelu": lambda x, w: ops.prelu(x, w[:1]),
    "prelu of a number": lambda x, w: ops.prelu(x, w[0]),
    "prelu of channels": ops.prelu,
}


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=["both", "input", "weight"])
@pytest.mark.parametrize("shape", [(4, 6, 70, 60), (2, 2, 4 * BLOCK), (600, 6, 2, 10)], ids=str)
@pytest.mark.parametrize("dtype", [ampkit.float64, ampkit.float32, ampkit.float16, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("name", GATES)
def test_glu_and_prelu_in_blocks_give_what_their_references_give(name, dtype, shape, wanted):
    values = np.random.default_rng(0).normal(0, 4, shape)
    if wanted[1] is False:  # what is not finite makes any sum of it so
        values[0, 0].flat[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e5]

    def run():
        x = ampkit.tensor(values, dtype=dtype, requires_grad=wanted[0])
        w = ampkit.tensor(np.linspace(-1, 1, shape[1]), dtype=dtype, requires_grad=wanted[1] and "prelu" in name)
        y = GATES[name](x, w)
        leaves = [t for t in (x, w) if t.requires_grad]
        kernel = y.node.kernel.name if leaves else None
        slopes = ampkit.tensor(np.linspace(-1, 1, y.numel()).reshape(y.shape), dtype=dtype)
        return kernel, y.detach().numpy(), [g.numpy() for g in ampkit.grad(y, leaves, slopes)] if leaves else []

    kernel, found, slopes = run()
    with reference_only():
        _, truth, wanted_slopes = run()
    assert kernel in (None, "glu_cpu", "prelu_cpu")
    np.testing.assert_array_equal(found.astype(float), truth.astype(float))
    assert found.dtype == truth.dtype
    for got, want in zip(slopes, wanted_slopes, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        tolerance = 0 if got.shape == shape else {2: 1e-2, 4: 1e-4, 8: 1e-10}[dtype.itemsize]
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance)

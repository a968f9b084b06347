"""Ops that run in blocks give what their references give over the whole array, bit for bit, there and back."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.backends.cpu import eltwise
from ampkit.backends.cpu.blocks import BLOCK
from ampkit.core.op import ops as registered
from ampkit.core.primitive import reference_only


@pytest.fixture(autouse=True)
def no_other_bodies(monkeypatch):
    monkeypatch.setattr(eltwise, "fits", lambda *arrays: False)


CALLS = {
    "elu": lambda x: ops.elu(x, 0.7),
    "gelu": lambda x: ops.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: ops.leaky_relu(x, 0.2),
    "logsigmoid": ops.logsigmoid,
    "mish": ops.mish,
    "sigmoid": ops.sigmoid,
    "silu": ops.silu,
    "softplus": lambda x: ops.softplus(x, beta=2.0),
}


def test_every_op_that_runs_in_blocks_is_tried_here():
    in_blocks = {name for name, op in registered.items() if any(b.name == "blocks" for b in op.forward.of("cpu"))}
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
    values[0, :6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e5]
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
    body = op.forward.of("cpu")[-1]
    assert body.when(values) and not body.when(view(values))

"""Gradients that are written where the optimizer wants them, without a copy, and are the same as those that are not."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.core.tensor import Tensor

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]


def values(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


class Watch:
    """Which gradients a parameter took over as they lay."""

    def __init__(self, monkeypatch):
        self.taken = []
        accumulate = nn.Parameter.accumulate

        def watched(parameter, gradient, *rest):
            self.taken.append(parameter._arena_segment is not None and gradient is parameter._arena_segment.gradient)
            accumulate(parameter, gradient, *rest)

        monkeypatch.setattr(nn.Parameter, "accumulate", watched)


LOSSES = {
    "linear": lambda w: ops.linear(Tensor(values(80, 64)), w),
    "mm": lambda w: ops.mm(Tensor(values(80, 64)), w),
    "twice in one": lambda w: ops.mm(w, w),
    "twice": lambda w: ops.linear(ops.linear(Tensor(values(80, 64)), w), w),
    "turned": lambda w: ops.linear(Tensor(values(80, 64)), w.T),
    "convolution": lambda w: ops.conv2d(Tensor(values(4, 16, 12, 12)), w.reshape(64, 16, 2, 2)),
}


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_a_parameter_without_an_optimizer(name, dtype):
    # Of copies: of the weight of an array that others may write to, no packed copy is kept, and last bits may differ.
    alone, held = (nn.Parameter(ampkit.tensor(values(64, 64))) for _ in range(2))
    optimizer = optim.SGD([held], lr=0.1)
    for w in (alone, held):
        for _ in range(2):  # the second adds to the first
            with ampkit.autocast(dtype=dtype or "bfloat16", enabled=dtype is not None):
                loss = (LOSSES[name](w) ** 2).mean()
            loss.backward()
    np.testing.assert_array_equal(held.grad.numpy(), alone.grad.numpy())
    assert np.shares_memory(held.grad.numpy(), held._arena_segment.gradient)
    optimizer.zero_grad()
    assert held.grad is None


def test_the_first_gradient_of_a_weight_is_written_in_place(monkeypatch):
    watch, layer = Watch(monkeypatch), nn.Linear(64, 96, bias=False)
    optimizer = optim.AdamW(layer.parameters())
    for expected in ([True], [True, False]):
        layer(Tensor(values(80, 64))).sum().backward()
        assert watch.taken == expected
    optimizer.zero_grad()
    watch.taken.clear()
    kernels = nn.Conv2d(16, 24, 3)
    optimizer = optim.AdamW(kernels.parameters())
    kernels(Tensor(values(4, 16, 12, 12))).sum().backward()
    assert sorted(watch.taken) == [False, True]  # the bias, the kernels


def test_a_gradient_that_somebody_holds_is_not_written_over():
    layer = nn.Linear(64, 96)
    optimizer = optim.SGD(layer.parameters(), lr=0.1)
    layer(Tensor(values(80, 64))).sum().backward()
    held = layer.weight.grad
    before = held.numpy().copy()
    optimizer.zero_grad()
    (layer(Tensor(values(80, 64))) * 3).sum().backward()
    np.testing.assert_array_equal(held.numpy(), before)
    np.testing.assert_allclose(layer.weight.grad.numpy(), 3 * before, rtol=1e-5, atol=1e-5)


def test_hooks_and_chosen_leaves_see_what_they_would():
    layer, seen = nn.Linear(64, 96), []
    optim.SGD(layer.parameters(), lr=0.1)
    layer.weight.register_hook(lambda g: seen.append(g.numpy().copy()))
    out = layer(Tensor(values(80, 64))).sum()
    out.backward(retain_graph=True)
    np.testing.assert_array_equal(seen[0], layer.weight.grad.numpy())
    layer.zero_grad()
    out.backward(inputs=[layer.bias])
    assert layer.weight.grad is None

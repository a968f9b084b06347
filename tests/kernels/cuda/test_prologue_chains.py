"""Gradients of batch_norm in a recorded step add up those of a residual where they load them, with eager bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import emulator
from kernels.cuda.test_chains import bits, names, same, tensors

import ampkit
from ampkit import nn, ops, optim
from ampkit.nn.modules.fused import norm_add_relu

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")


class Block(nn.Module):
    """A residual block, whose sum and ReLU are part of its norm, or ops of their own."""

    def __init__(self, channels: int, fused: bool):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.relu, self.fused = nn.ReLU(), fused

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        return norm_add_relu(y, self.norm, x, self.relu) if self.fused else ops.relu(self.norm(y) + x)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("channels", "dtype"), [(16, "bfloat16"), (8, "float32"), (5, "float16")], ids=str)
def test_a_sum_of_gradients_is_computed_where_a_norm_loads_it(channels, dtype, channels_last, fused, device):
    def trained(compiled: bool) -> tuple[list[bytes], Any]:
        ampkit.manual_seed(0)
        model = nn.Sequential(*[Block(channels, fused) for _ in range(3)]).to("cuda")
        x = tensors(1, ampkit.float32, (3, channels, 6, 8))[0].detach()
        if channels_last:
            x = x.contiguous(memory_format=ampkit.channels_last)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Any) -> Any:
            with ampkit.autocast("cuda", dtype=getattr(ampkit, dtype), enabled=dtype != "float32"):
                loss = (model(x) ** 2).mean()
            loss.backward()
            read = [p.grad.detach() * 1.0 for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            return [loss.detach(), *read]

        run, found = ampkit.compile(step, warmup=1, fullgraph=True) if compiled else step, []
        for _ in range(4):
            found += bits(run(x))
        return found, run.report() if compiled else None

    (found, report), (expected, _) = trained(True), trained(False)
    assert found == expected
    assert any("Add" in each and "BatchNorm backward" in each for each in names(report)), report


def test_a_norm_whose_gradient_is_a_chain_has_the_gradients_of_an_eager_one(device):
    def step(x: Any, z: Any, weight: Any, bias: Any) -> Any:
        out = ops.batch_norm(x * 2.0, None, None, weight, bias, training=True)
        other = ops.batch_norm(x, bias.detach(), (weight * weight).detach() + 1.0, weight, training=False)
        loss = ops.silu(out) * z + out.T.contiguous().T * other.exp()
        grads = ampkit.grad(loss, (x, weight, bias), ampkit.ones_like(loss))
        total = grads[1] + grads[2]
        return *grads, total, grads[0].sum((0, 2))

    x, z = tensors(2, ampkit.float32, (4, 6, 16))
    same(step, [x, z.detach(), *tensors(2, ampkit.float32, (6,))])


def test_a_gradient_that_is_held_is_stored_where_it_is_loaded(device):
    def step(x: Any, z: Any, weight: Any) -> Any:
        out = ops.batch_norm(x, None, None, weight, training=True)
        seen = list[Any]()
        out.register_hook(lambda dy: seen.append(dy.detach()))
        loss = ops.silu(out) * z
        grads = ampkit.grad(loss, (x, weight), ampkit.ones_like(loss))
        return *grads, seen[0] * 2.0, seen[0]

    x, z = tensors(2, ampkit.float32, (4, 8, 24))
    report = same(step, [x, z.detach(), *tensors(1, ampkit.float32, (8,))])
    assert np.isfinite(x.numpy(force=True)).all() and report.graphs

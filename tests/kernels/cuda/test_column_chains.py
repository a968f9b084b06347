"""Reductions of columns in a recorded step compute their prologue where they load it, with eager bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import emulator
from kernels.cuda.test_chains import bits, names, same, tensors

import ampkit
from ampkit import nn, ops, optim

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 40, 104), "bfloat16"), ((1100, 8), "float32"), ((50, 33), "float16")], ids=str
)
def test_a_sum_over_columns_computes_its_prologue(shape, dtype, device):
    def step(x: Any, y: Any, weight: Any) -> Any:
        out = ops.silu(x) * weight
        return ampkit.grad(out, (weight,), y)

    dtype = getattr(ampkit, dtype)
    report = same(step, [*tensors(2, dtype, shape), *tensors(1, dtype, shape[-1:])])
    (chain,) = [each for each in report.chains if "Add of columns" in each.names]
    assert chain.names == ("Silu", "Mul backward", "Add of columns")
    assert chain.stored == 1
    assert chain.after < 2.2 * dtype.itemsize * int(np.prod(shape))


def test_sums_over_columns_that_overflow_are_computed_once_more_from_their_prologue(device):
    values = np.random.default_rng(0).normal(size=(40, 24)).astype(np.float32)
    values[:, 3] = 3e38 * np.where(np.arange(40) % 2, 1, -1)
    values[5, 7], values[2, 8] = np.nan, np.inf
    x = ampkit.tensor(values, device="cuda")

    def step(x: Any) -> Any:
        return (x * 0.9).sum(0), (x * x).sum((0,)), (x * 1e-24).square().mean(0)

    with ampkit.no_grad():
        assert any("Add of columns" in each for each in names(same(step, [x])))


def test_what_is_held_is_stored_once_and_read_by_the_sum(device):
    def step(x: Any, y: Any) -> Any:
        memory = x * 1.0
        product = memory * y + 0.5
        total, other = product.sum(0), (memory * y).sum(0)
        memory.add_(1.0)
        return product - total, product, total, other, ((memory * y).exp() * y).sum(0, keepdim=True) + memory

    with ampkit.no_grad():
        same(step, tensors(2, ampkit.float32, (40, 24)))


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_of_a_gate_and_of_its_other_factor_are_one_kernel(shared, device):
    def trained(compiled: bool) -> list[bytes]:
        ampkit.manual_seed(0)
        width = 40 if shared else 64
        model = nn.ModuleList([nn.Linear(40, width), nn.Linear(40, width), nn.Linear(width, 40)]).to("cuda")
        parameters, x = list(model.parameters()), tensors(1, ampkit.float32, (24, 40))[0].detach()
        gate, up, down = model
        scale = nn.Parameter(ampkit.full((40,), 1.5, device="cuda"))
        parameters.append(scale)
        optimizer = optim.SGD(parameters, lr=0.1)

        def step(x: Any) -> Any:
            with ampkit.autocast("cuda", dtype=ampkit.bfloat16):
                h = x * scale
                hidden = ops.silu(h if shared else gate(h)) * up(h)
                if shared:  # the sum of three gradients of h has an order
                    hidden = hidden + h * 0.3
                loss = down(hidden).square().mean()
            loss.backward()
            gradient = scale.grad.detach() * 1.0
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach(), gradient

        run = ampkit.compile(step, warmup=1, fullgraph=True) if compiled else step
        found = [each for _ in range(3) for each in bits(run(x))]
        if compiled:
            assert shared or ("Silu", "Mul backward", "Silu backward") in names(run.report())
        return [*found, *bits(parameters)]

    assert trained(True) == trained(False)

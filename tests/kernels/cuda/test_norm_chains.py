"""Norms in a recorded step share a kernel with their prologue and epilogue, with eager bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import emulator
from kernels.cuda.test_chains import bits, names, same, tensors

import ampkit
from ampkit import nn, ops, optim

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")


def given(dtype: Any, shape: tuple[int, ...]) -> list[Any]:
    return [*tensors(2, dtype, shape), *tensors(1, ampkit.float32, shape), *tensors(2, ampkit.float32, shape[-1:])]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3, 4, 104), "bfloat16"), ((1, 40), "float32"), ((5, 33), "float16"), ((3, 1032), "bfloat16")],
    ids=str,
)
def test_a_norm_computes_its_prologue_and_its_epilogue(norm, shape, dtype, device):
    def step(x: Any, branch: Any, z: Any, weight: Any, bias: Any) -> Any:
        total = x + branch
        scales = (weight, bias) if norm == "layer_norm" else (weight,)
        out = getattr(ops, norm)(total, shape[-1:], *scales).to(ampkit.bfloat16)
        loss = out.float() * z
        grads = ampkit.grad(loss, (x, branch, *scales), ampkit.ones_like(loss))
        return out.detach(), (grads[0] * 2.0).detach(), *grads[1:]

    report = same(step, given(getattr(ampkit, dtype), shape))
    title = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}[norm]
    (forward,) = [each for each in names(report) if title in each]
    assert forward[:3] == ("Add", title, "Copy")
    backward = next(each for each in names(report) if f"{title} backward" in each)
    assert "Copy" in backward[: backward.index(f"{title} backward")]


def test_statistics_and_results_that_are_held_and_read_later_are_those_of_the_norm(device):
    def step(x: Any, y: Any, z: Any, weight: Any, bias: Any) -> Any:
        memory = x * 2.0
        out = ops.layer_norm(memory, (40,), weight, bias)
        first = ops.silu(out) + y
        second = ops.layer_norm(out * z, (40,), bias)
        total = second.sum(-1, keepdim=True)  # waits for the norm
        memory.add_(1.0)
        return first, out - total, memory, ops.rms_norm(first.T.contiguous(), (24,)), ops.layer_norm(z, (24, 40))

    with ampkit.no_grad():
        same(step, given(ampkit.float32, (24, 40)))


@pytest.mark.parametrize("width", [40, 9000])  # registers hold a row, or do not
def test_gradients_of_norms_are_written_where_an_optimizer_reads_them(width, device):
    def trained(compiled: bool) -> list[bytes]:
        ampkit.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 16), nn.RMSNorm(16), nn.LayerNorm(16)).to("cuda")
        parameters, x = list(model.parameters()), tensors(1, ampkit.float32, (6, width))[0].detach()
        optimizer = optim.SGD(parameters, lr=0.1, momentum=0.9)

        def step(x: Any) -> Any:
            with ampkit.autocast("cuda", dtype=ampkit.bfloat16):
                loss = (model(x * 2.0) ** 2).mean() + model(x).abs().mean()  # the second gradient is added
            loss.backward()
            norm = optim.clip_grad_norm_(parameters, 1.0)
            read = [p.grad.detach() * 1.0 for p in parameters]
            optimizer.step()
            optimizer.zero_grad()
            return [loss.detach(), norm, *read]

        run, found = ampkit.compile(step, warmup=1, fullgraph=True) if compiled else step, []
        for _ in range(3):
            found += bits(run(x))
        if compiled:
            assert any("LayerNorm backward" in each for each in names(run.report()))
        return [*found, *bits(parameters)]

    assert trained(True) == trained(False)


def test_a_norm_reads_a_gradient_buffer_before_another_one_writes_it(device):
    parameter = nn.Parameter(ampkit.tensor(np.linspace(0.5, 1.5, 40, dtype=np.float32), device="cuda"))
    optimizer, x = optim.SGD([parameter], lr=0.1), tensors(1, ampkit.float32, (6, 40))[0].detach()

    def step(x: Any) -> Any:
        found = []
        for _ in range(2):
            ops.layer_norm(x, (40,), parameter).square().mean().backward()
            with ampkit.no_grad():
                found.append(parameter.grad * 3.0)
            optimizer.zero_grad()
        return found

    same(step, [x])

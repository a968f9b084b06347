"""Gradients of leaves in a recorded step are stored where the optimizer keeps them, with eager bits."""

from __future__ import annotations

from typing import Any

import pytest
from cuda_on_cpu import emulator
from kernels.cuda.test_chains import bits, tensors

import ampkit
from ampkit import nn, ops, optim
from ampkit.backends.cuda.device import CUDA

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")


def trained(work: Any, shape: tuple[int, ...], compiled: bool, monkeypatch: Any) -> tuple[list[bytes], int]:
    """The bits of a training of one parameter, and how many copies between arrays the recording has."""
    parameter = nn.Parameter(tensors(1, ampkit.float32, shape)[0].detach() * 0.5 + 1.0)
    optimizer, copies = optim.SGD([parameter], lr=0.1), []
    copy = CUDA.copy

    def counted(self: Any, *arrays: Any) -> None:
        copies.extend([arrays] if self.recording is not None else [])
        copy(self, *arrays)

    monkeypatch.setattr(CUDA, "copy", counted)

    def step(x: Any, y: Any) -> Any:
        found = work(x, y, parameter)
        optimizer.step()
        optimizer.zero_grad()
        return found

    run, found = ampkit.compile(step, warmup=2, fullgraph=True) if compiled else step, []
    for _ in range(5):
        found.append(run(*tensors(2, ampkit.float32, (24, 40))))
    return [*[one for each in found for one in bits(each)], *bits(parameter)], len(copies)


def of_columns(x: Any, y: Any, scale: Any) -> Any:
    loss = (x.detach() * scale + y.detach()).square().mean()
    loss.backward()
    return loss.detach()


def of_elements(x: Any, y: Any, weight: Any) -> Any:
    out = ops.silu(x.detach() * weight) - y.detach()
    out.backward(y.detach())
    return out.detach()


def read_by_others(x: Any, y: Any, scale: Any) -> Any:
    seen = []
    handle = scale.register_hook(lambda gradient: seen.append(gradient * 2.0))
    of_columns(x, y, scale)
    handle.remove()
    first = scale.grad.detach().clone()
    scale.grad.mul_(0.5)
    return *seen, first, scale.grad.detach() + 1.0


def twice(x: Any, y: Any, scale: Any) -> Any:
    first = of_columns(x, y, scale)
    return first, of_columns(y, x, scale), scale.grad.detach() * 1.0


@pytest.mark.parametrize(
    ("work", "shape", "copies"),
    [(of_columns, (40,), 0), (of_elements, (24, 40), 0), (read_by_others, (40,), None), (twice, (40,), None)],
    ids=["columns", "elements", "read by others", "twice"],
)
def test_a_gradient_that_waits_is_stored_in_the_optimizers_memory(work, shape, copies, device, monkeypatch):
    expected, _ = trained(work, shape, False, monkeypatch)
    found, made = trained(work, shape, True, monkeypatch)
    assert found == expected
    assert copies is None or made == copies

"""Compiled steps whose tensors have other sizes at every call: no length costs a recording."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from waiting_launches import bits, let_all_wait

import ampkit
from ampkit import nn, ops
from ampkit.backends.cpu.native.arrays import available


@pytest.fixture
def _all_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from let_all_wait(monkeypatch)


def training(device: str) -> Any:
    """A step of gradients and a loss, over any number of rows."""
    layer = nn.Linear(64, 64).to(device)
    with ampkit.no_grad():
        for parameter in layer.parameters():
            values = ampkit.linspace(-1.0, 1.0, parameter.numel(), device=parameter.device)
            parameter.copy_(values.reshape(parameter.shape))
    optimizer = ampkit.optim.SGD(layer.parameters(), lr=1e-3)

    def step(x: Any) -> Any:
        y = layer(x)
        loss = (ops.silu(y) * x + y).clamp(-4.0, 4.0).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def rows(count: int, device: str = "cpu") -> Any:
    return ampkit.tensor(np.random.default_rng(count).normal(size=(count, 64)).astype(np.float32), device=device)


@pytest.mark.no_gpu
@pytest.mark.usefixtures("_all_wait")
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_on_a_cpu_chains_take_every_length_and_nothing_is_kept_of_it(dynamic):
    eager, compiled = training("cpu"), ampkit.compile(training("cpu"), dynamic=dynamic)
    for count in (300, 81, 300, 90, 999, 1, 85):
        assert bits(compiled(rows(count))) == bits(eager(rows(count)))
        if available() and count > 80:
            assert any(chain.shape == (count, 64) for chain in compiled.report().chains)
    assert not compiled._variants


def test_on_a_gpu_only_the_sizes_that_came_back_first_are_recorded_and_others_run_eagerly(gpu):
    eager, compiled = training("cuda"), ampkit.compile(training("cuda"), dynamic=True)
    counts = [5, 7, 7, 5, 7, 7, 8, 9, 5, 7, *range(10, 24), 7]
    wanted = [eager(rows(count, "cuda")).item() for count in counts]
    with pytest.warns(RuntimeWarning, match="^compile: runs eagerly: a graph has fixed sizes") as told:
        assert [compiled(rows(count, "cuda")).item() for count in counts] == wanted
    assert len(told) == 1
    assert [kind.inputs[0].shape for kind in compiled._variants.values() if kind.graph.recording is not None] == [
        (7, 64)
    ]
    assert "eager: a graph has fixed sizes, and with dynamic=True no other is recorded for these" in str(
        compiled.report()
    )


def test_a_length_among_the_arguments_is_a_size(gpu):
    def part(x: Any, length: int) -> Any:
        return x[:length] * 2.0

    compiled, x = ampkit.compile(part, dynamic=True, warmup=1), rows(30, "cuda")
    with ampkit.no_grad(), pytest.warns(RuntimeWarning, match="a graph has fixed sizes"):
        found = [compiled(x, length) for length in (4, 4, 4, *range(5, 20), 4)]
    assert [len(one) for one in found] == [4, 4, 4, *range(5, 20), 4]
    assert len(compiled._variants) == 1


def test_without_dynamic_each_length_has_a_recording_of_its_own(gpu):
    compiled = ampkit.compile(training("cuda"), warmup=1, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in (5, 7, 5, 7):
            compiled(rows(count, "cuda"))
    assert compiled.report().graphs == 2

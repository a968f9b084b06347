"""ampkit.compile on a GPU: optimizers whose parameters are frozen, or get other memory, between the calls of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import memory

import ampkit
from ampkit import nn, ops, optim


@pytest.fixture(autouse=True)
def device(gpu: Any) -> Iterator[Any]:
    """A GPU as the backend "cuda"."""
    yield gpu
    memory.hooks.clear()


def weights(compiled: bool, kind: Any, changes: list[Callable[[nn.Module], Any] | None]) -> list[Any]:
    """The parameters after each of some steps, before each of which something changes."""
    ampkit.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to("cuda")
    optimizer = kind(model.parameters(), lr=0.1)

    def step(x: Any) -> None:
        ops.mse_loss(model(x), x[:, :2]).backward()
        optimizer.step()
        optimizer.zero_grad()

    call = ampkit.compile(step, warmup=2) if compiled else step
    found = []
    for change in changes:
        if change is not None:
            change(model)
        call(ampkit.tensor(np.linspace(-1, 1, 12, dtype="f").reshape(4, 3), device="cuda"))
        found.append([p.numpy(force=True).tolist() for p in model.parameters()])
    if compiled:
        assert call.eager_because == []
        assert any(kind.graph.recording is not None for kind in call._variants.values())
    return found


def freeze(model: nn.Module) -> None:
    model[0].requires_grad_(False)


def thaw(model: nn.Module) -> None:
    model[0].requires_grad_(True)


def other_memory(model: nn.Module) -> None:
    model[2].weight.data = model[2].weight.data.clone()


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.NAdam, optim.Adamax, optim.RAdam])
def test_a_layer_that_is_frozen_for_some_steps_trains_on_as_in_eager_steps(kind):
    changes = [None, None, None, freeze, None, None, thaw, None, None, None, freeze, thaw, None]
    assert weights(True, kind, changes) == weights(False, kind, changes)


@pytest.mark.parametrize("before", range(5))  # 2: the recording
def test_a_parameter_gets_other_memory_before_any_call(before):
    changes = [other_memory if call == before else None for call in range(9)]
    assert weights(True, optim.Adam, changes) == weights(False, optim.Adam, changes)

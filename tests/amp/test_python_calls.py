"""How many Python functions a training step calls: a number that does not depend on the machine, unlike its time.

Of a small model, whose steps take as long as these calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ampkit
from ampkit import GradScaler, Policy, autocast, nn, optim
from ampkit.backends.cpu.native.library import library
from ampkit.core.module_path import following
from ampkit.core.tensor import Tensor
from ampkit.core.tensor_base import TensorBase

pytestmark = pytest.mark.no_gpu


@pytest.fixture(autouse=True)
def _nothing_is_followed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo, within a test, what a policy by module and a compiled step asked for in a test before."""
    monkeypatch.setattr(Tensor, "array", vars(TensorBase)["_array"])
    held = following[:]
    following.clear()
    yield
    following[:] = held


def calls_of(function: Callable[[], Any]) -> int:
    """The number of Python functions that a call of `function` calls, once all caches are filled."""
    for _ in range(3):
        function()
    return _count(function)


def _count(function: Callable[[], Any]) -> int:
    calls = -1  # that of `function` itself

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def test_a_region_that_is_entered_again_makes_no_policy():
    def region() -> None:
        with autocast("cpu", dtype=ampkit.bfloat16):
            pass

    assert calls_of(region) <= 15


def test_a_linear_layer_in_a_region_of_its_own_takes_few_calls():
    layer, x = nn.Linear(8, 8), ampkit.ones(4, 8)

    def forward() -> None:
        with autocast("cpu", dtype=ampkit.bfloat16):
            layer(x)

    assert calls_of(forward) <= 72


def calls_of_layer(policy: Policy) -> float:
    """The calls of one of many layers of a model in a region of `policy`."""

    def forward(layers: int) -> int:
        model, x = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)]), ampkit.ones(4, 8)

        def run() -> None:
            with autocast("cpu", policy=policy):
                model(x)

        return calls_of(run)

    return (forward(12) - forward(4)) / 8


def test_a_policy_by_module_is_looked_up_once_for_each_module():
    followed = Policy("bfloat16", modules={"0": "bfloat16"})  # from here on calls of modules are followed
    assert calls_of_layer(followed) - calls_of_layer(Policy("bfloat16")) <= 10


def calls_of_step(layers: int, kind: type[Any], with_scaler: bool = True) -> int:
    """The calls of a step of a model of `layers` linear layers, in the fourth iteration of its training."""
    model, x = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)]), ampkit.ones(4, 8)
    optimizer, scaler = kind(model.parameters(), lr=1e-3), GradScaler("cpu", enabled=with_scaler)
    found = 0
    for _ in range(4):
        with autocast("cpu", dtype=ampkit.bfloat16):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        found = _count(lambda: scaler.step(optimizer))
        scaler.update()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD, optim.RMSprop])
def test_a_step_of_a_scaler_finds_its_gradients_once(kind):
    most = 140 if kind is optim.AdamW else 142
    assert calls_of_step(2, kind) <= (most if library() is not None else 165)  # the references call more than kernels


@pytest.mark.parametrize("with_scaler", [True, False])
@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD, optim.RMSprop])
def test_a_step_calls_no_function_for_each_parameter(kind, with_scaler):
    assert calls_of_step(2, kind, with_scaler) == calls_of_step(20, kind, with_scaler)

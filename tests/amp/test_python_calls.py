"""How many Python functions a training step calls: a number that does not depend on the machine, unlike its time.

Of a small model, whose steps take as long as these calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ampkit
from ampkit import autocast, nn
from ampkit.core.module_path import following

pytestmark = pytest.mark.no_gpu


@pytest.fixture(autouse=True)
def _modules_are_not_followed() -> Iterator[None]:
    """Undo, within a test, what a policy by module asked for in a test before."""
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

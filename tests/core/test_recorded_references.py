"""Where the kernel of a recorded step leaves a call to its reference, the reference reads nothing that waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import memory

import ampkit

SHAPES = [((), 0), ((1,), 0), ((1, 5), 0), ((5, 1), 1), ((2, 1, 3), 1), ((1, 40), (0, 1)), ((64, 1), -1)]


@pytest.fixture(autouse=True)
def device(gpu: Any) -> Iterator[Any]:
    """A GPU as the backend "cuda"."""
    yield gpu
    memory.hooks.clear()


def numbers(values: Any) -> list[Any]:
    return [one.numpy(force=True).tolist() for one in values]


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "nansum"])
@pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float16, ampkit.float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_a_reduction_over_one_element_is_that_of_an_eager_step(shape, dim, dtype, name):
    def step(x: Any) -> list[Any]:
        one = getattr(x * 2, name)(dim)
        return [one, one * 3, getattr(x, name)(dim)]

    call = ampkit.compile(step, warmup=1)
    for seed in range(3):
        x = ampkit.tensor(np.random.default_rng(seed).normal(size=shape), device="cuda").to(dtype)
        assert numbers(call(x)) == numbers(step(x))
    assert call.eager_because == []


def test_the_gradient_of_a_sum_over_one_element_is_that_of_an_eager_step():
    def step(x: Any) -> list[Any]:
        total = (x.sum(1) * x.mean(1)).float().sum()
        return [total.detach(), *ampkit.grad(total, [x])]

    call = ampkit.compile(step, warmup=1)
    for seed in range(3):
        x = ampkit.tensor(np.random.default_rng(seed).normal(size=(5, 1)), device="cuda").bfloat16().detach()
        assert numbers(call(x.requires_grad_())) == numbers(step(x))
    assert call.eager_because == []

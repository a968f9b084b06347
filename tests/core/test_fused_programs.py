"""Random programs, compiled on a CPU, have the bits of eager ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from waiting_launches import let_all_wait, same

import ampkit
from ampkit import ops

pytestmark = pytest.mark.no_gpu
SHAPE = (64, 80)  # elements for which kernels run, not NumPy


@pytest.fixture(autouse=True)
def _all_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from let_all_wait(monkeypatch)


_UNARY = (
    "silu",
    "relu",
    "tanh",
    "gelu",
    "sigmoid",
    "exp",
    "neg",
    "abs",
    "square",
    "hardswish",
    "softplus",
    "sqrt",
    "log1p",
)
_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "atan2")


class Program:
    """Random operations on a pool of tensors; the choices depend on the seed alone."""

    def __init__(self, seed: int, leaves: bool):
        self.random, self.leaves = np.random.default_rng(seed), leaves
        dtypes = [ampkit.bfloat16, ampkit.float16, ampkit.float32]
        self.made = [
            (self.random.normal(size=s).astype(np.float32), dtypes[self.random.integers(3)]) for s in self._shapes()
        ]
        self.plan = [tuple(self.random.integers(1 << 30, size=5)) for _ in range(28)]

    def _shapes(self) -> list[tuple[int, ...]]:
        return [SHAPE, SHAPE, SHAPE, (80,), (64, 1), (1, 1), (SHAPE[1], SHAPE[0])]

    def __call__(self) -> list[Any]:
        pool = [ampkit.tensor(values).to(dtype).detach().requires_grad_(self.leaves) for values, dtype in self.made]
        leaves = list(pool)
        for what, *choices in self.plan:
            full = [one for one in pool if tuple(one.shape) == SHAPE]
            pick = [full[c % len(full)] for c in choices]
            made = self._made(what % 16, pick, leaves, choices)
            if made is not None:
                pool.append(made)
            if what % 7 == 0 and len(full) > 3:
                dropped = pick[1]
                pool = [one for one in pool if one is not dropped]
        last = [one for one in pool if tuple(one.shape) == SHAPE][-1]
        if last.requires_grad:
            last.backward(ampkit.ones_like(last))
        return [*pool, *[one.grad for one in leaves if one.grad is not None]]

    def _made(self, what: int, pick: list[Any], leaves: list[Any], choices: list[int]) -> Any:
        x, y, z, _ = pick
        y = [y, *leaves[:-1]][choices[1] % len(leaves)]
        if what < 4:
            return getattr(ampkit if hasattr(ampkit, _UNARY[choices[2] % 13]) else ops, _UNARY[choices[2] % 13])(x)
        if what < 8:
            name = _BINARY[choices[2] % 7]
            return getattr(ampkit, name)(x.to(z.dtype), y.to(z.dtype))
        if what == 8:
            return x * 0.37 + 1.5
        if what == 9:
            return ampkit.where(x > z, x.float(), 0.25)
        if what == 10:
            return x.to([ampkit.float32, ampkit.bfloat16, ampkit.float16][choices[2] % 3])
        if what == 11:
            return ops.silu(leaves[-1].T.to(x.dtype)) * x
        if what == 12:
            with ampkit.no_grad():
                return (x[:, ::2].repeat_interleave(2, 1) + y.to(x.dtype).detach()).clamp(-3, 3)
        if what == 13:
            memory = x.detach().clone()
            memory.mul_(0.5)
            return memory + x
        if what == 14:
            return ops.softmax(x.float(), -1).to(x.dtype) * x
        value = float(x.detach()[0, 0])
        return x * (value if np.isfinite(value) else 1.0) - x.sum(0)


@pytest.mark.parametrize("leaves", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_have_the_bits_of_eager_ones(seed, leaves):
    program = Program(seed, leaves)
    with np.errstate(all="ignore"):
        same(program, list, 0)

"""Random programs of data assignments, views, NumPy writes, optimizer steps and 16-bit forwards.

A program runs on a library with PyTorch's interface (`Tensors`) and on NumPy arrays, which share memory as PyTorch's
storages do (`Arrays`). After every instruction all tensors that are alive must have the same values.

    python -m tests.fuzz.memory_programs [--programs 5000] [--seed N]

`python -m tests.peers.memory_programs` runs the same programs on PyTorch.
"""

from __future__ import annotations

import argparse
import sys
from random import Random
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

LENGTH, SIZE, RATE = 14, 4, 0.125
CURVATURES = (0.5, 1.0, 2.0)  # the loss is the sum of c p^2 / 2; with powers of two the oracle rounds as a kernel does
INEXACT = {"tie", "to_double", "to_float", "transpose"}  # then the order of updates, or a moment's dtype, differs
WEIGHTS = {
    "keep": 3, "view": 2, "clone": 2, "fresh": 3, "assign": 8, "swap": 2, "tie": 1, "transpose": 1, "numpy": 3,
    "numpy_of_kept": 3, "scale_kept": 2, "copy": 2, "backward": 4, "step": 5, "zero": 1, "gradient_numpy": 1,
    "gradient_data": 1, "low": 5, "entry": 1, "load": 1, "load_assign": 1, "to_double": 1, "to_float": 1, "freeze": 1,
    "vector": 1, "again": 1,
}  # fmt: skip

Instruction = tuple[str, int, int, float]


def program(seed: int) -> tuple[float | None, list[Instruction]]:
    """The momentum of an optimizer (None: there is none), and instructions with two places and a number."""
    draw = Random(seed)
    names = draw.choices(list(WEIGHTS), list(WEIGHTS.values()), k=LENGTH)
    lines = [(name, draw.randrange(3), draw.randrange(100), draw.choice([-1.5, 0.25, 3.0, 7.0])) for name in names]
    momentum = draw.choice([None, 0.0, 0.5])
    if momentum is not None:
        lines.insert(draw.choice([0, 0, draw.randrange(LENGTH)]), ("make", 0, 0, momentum))
    return momentum, lines


def _start() -> list[Any]:
    grid = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    return [(grid - 5 * k) / 4 + np.float32(1 / 512) for k in range(3)]


class Tensors:
    """The machine of a library with PyTorch's names: `t` has its functions, `nn`, `optim` and `linear`."""

    def __init__(self, t: Any):
        self.t, self.kept = t, []
        self.model = t.nn.Module()
        for k, values in enumerate(_start()):
            setattr(self.model, f"p{k}", t.nn.Parameter(t.tensor(values)))
        self.p = list(self.model.parameters())
        self.optimizer: Any = None

    def numbers(self) -> list[Any]:
        return [np.array(x.detach().tolist()) for x in (*self.p, *self.kept)]

    def run(self, name: str, i: int, j: int, v: float) -> Any:
        p = self.p[i]
        kept = self.kept[j % len(self.kept)] if self.kept else p.data
        return getattr(self, name)(p, self.p[j % 3], kept, v)

    def make(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.optimizer = self.t.optim.SGD(self.p, lr=RATE, momentum=v)

    def keep(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(p.data)

    def view(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(p.detach()[1:3])

    def clone(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(p.data.clone())

    def fresh(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(self.t.full((SIZE, SIZE), v))

    def assign(self, p: Any, q: Any, kept: Any, v: float) -> None:
        if tuple(kept.shape) == (SIZE, SIZE):
            p.data = kept

    def again(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.data = p.data.view(SIZE, SIZE) if p.is_contiguous() else p.data

    def swap(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.data, q.data = q.data, p.data

    def tie(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.data = q.data

    def transpose(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.data = p.data.t()

    def numpy(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.detach().numpy()[1, 2] = v

    def numpy_of_kept(self, p: Any, q: Any, kept: Any, v: float) -> None:
        kept.numpy()[1] = v

    def scale_kept(self, p: Any, q: Any, kept: Any, v: float) -> None:
        kept.mul_(0.5)

    def copy(self, p: Any, q: Any, kept: Any, v: float) -> None:
        with self.t.no_grad():
            p.fill_(v)
            p[:2].copy_((kept[:2] if kept.dim() == 2 else q[:2]).clone())

    def backward(self, p: Any, q: Any, kept: Any, v: float) -> None:
        pairs = zip(CURVATURES, self.p, strict=True)
        if losses := [(x * x).sum() * (c / 2) for c, x in pairs if x.requires_grad]:
            sum(losses).backward()

    def step(self, p: Any, q: Any, kept: Any, v: float) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad()
            self.backward(p, q, kept, v)
            self.optimizer.step()

    def zero(self, p: Any, q: Any, kept: Any, v: float) -> None:
        for x in self.p:
            x.grad = None

    def gradient_numpy(self, p: Any, q: Any, kept: Any, v: float) -> None:
        if p.grad is not None:
            p.grad.numpy()[1, 2] = v
            self._step_as_it_is()

    def gradient_data(self, p: Any, q: Any, kept: Any, v: float) -> None:
        if p.grad is not None:
            p.grad.data = self.t.full((SIZE, SIZE), v, dtype=p.grad.dtype)
            self._step_as_it_is()

    def _step_as_it_is(self) -> None:
        if self.optimizer is not None:
            self.optimizer.step()

    def low(self, p: Any, q: Any, kept: Any, v: float) -> Any:
        with self.t.no_grad(), self.t.autocast("cpu", dtype=self.t.bfloat16):
            return np.array(self.t.linear(self.t.eye(SIZE, dtype=p.dtype), p).double().tolist())

    def entry(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(self.model.state_dict()["p1"])

    def load(self, p: Any, q: Any, kept: Any, v: float) -> None:
        state = {f"p{k}": self.t.full((SIZE, SIZE), v + k) for k in range(3)}
        self.model.load_state_dict(state)

    def load_assign(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.data = self.t.full((SIZE, SIZE), v)

    def to_double(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.data = p.data.double()

    def to_float(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.data = p.data.float()

    def freeze(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.requires_grad_(not p.requires_grad)

    def vector(self, p: Any, q: Any, kept: Any, v: float) -> None:
        if all(x.dtype == self.t.float32 for x in self.p):
            self.kept.append(self.t.full((3 * SIZE * SIZE,), v))
            self.t.nn.utils.vector_to_parameters(self.kept[-1], self.p)


class Arrays(Tensors):
    """The machine of NumPy arrays: a parameter has an array `a`, a gradient `g` and a momentum buffer `b`."""

    def __init__(self) -> None:
        self.p = [SimpleNamespace(a=values, g=None, b=None, trained=True) for values in _start()]
        self.kept: list[Any] = []
        self.momentum: float | None = None

    def numbers(self) -> list[Any]:
        return [np.array(a, np.float64) for a in (*(p.a for p in self.p), *self.kept)]

    def run(self, name: str, i: int, j: int, v: float) -> Any:
        kept = self.kept[j % len(self.kept)] if self.kept else self.p[i].a
        return getattr(self, name)(self.p[i], self.p[j % 3], kept, v)

    def make(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.momentum = v

    def keep(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(p.a)

    def view(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(p.a[1:3])

    def clone(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(p.a.copy())

    def fresh(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(np.full((SIZE, SIZE), v, np.float32))

    def assign(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.a = kept if kept.shape == (SIZE, SIZE) else p.a

    def again(self, p: Any, q: Any, kept: Any, v: float) -> None:
        pass

    def swap(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.a, q.a = q.a, p.a

    def tie(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.a = q.a

    def transpose(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.a = p.a.T

    def numpy(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.a[1, 2] = v

    def numpy_of_kept(self, p: Any, q: Any, kept: Any, v: float) -> None:
        kept[1] = v

    def scale_kept(self, p: Any, q: Any, kept: Any, v: float) -> None:
        kept *= np.asarray(0.5, kept.dtype)

    def copy(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.a[...] = v
        p.a[:2] = (kept[:2] if kept.ndim == 2 else q.a[:2]).copy()

    def backward(self, p: Any, q: Any, kept: Any, v: float) -> None:
        for c, x in zip(CURVATURES, self.p, strict=True):
            if x.trained:
                new = x.a * np.asarray(c, x.a.dtype)
                x.g = new if x.g is None else x.g + new.astype(x.g.dtype)

    def step(self, p: Any, q: Any, kept: Any, v: float) -> None:
        if self.momentum is not None:
            self.zero(p, q, kept, v)
            self.backward(p, q, kept, v)
            self._step_as_it_is()

    def zero(self, p: Any, q: Any, kept: Any, v: float) -> None:
        for x in self.p:
            x.g = None

    def _step_as_it_is(self) -> None:
        for x in self.p if self.momentum is not None else ():
            if x.g is not None:
                if self.momentum:
                    x.b = x.g.copy() if x.b is None else x.b * np.asarray(self.momentum, x.b.dtype) + x.g
                x.a -= ((x.b if self.momentum else x.g) * np.asarray(RATE, x.g.dtype)).astype(x.a.dtype)

    def gradient_numpy(self, p: Any, q: Any, kept: Any, v: float) -> None:
        if p.g is not None:
            p.g[1, 2] = v
            self._step_as_it_is()

    def gradient_data(self, p: Any, q: Any, kept: Any, v: float) -> None:
        if p.g is not None:
            p.g = np.full_like(p.g, v)
            self._step_as_it_is()

    def low(self, p: Any, q: Any, kept: Any, v: float) -> Any:
        return np.array((p.a.astype(ml_dtypes.bfloat16) if p.a.dtype == np.float32 else p.a).T, np.float64)

    def entry(self, p: Any, q: Any, kept: Any, v: float) -> None:
        self.kept.append(self.p[1].a)

    def load(self, p: Any, q: Any, kept: Any, v: float) -> None:
        for k, x in enumerate(self.p):
            x.a[...] = v + k

    def load_assign(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.a = np.full((SIZE, SIZE), v, np.float32)

    def to_double(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.a = p.a.astype(np.float64, copy=False)

    def to_float(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.a = p.a.astype(np.float32, copy=False)

    def freeze(self, p: Any, q: Any, kept: Any, v: float) -> None:
        p.trained = not p.trained

    def vector(self, p: Any, q: Any, kept: Any, v: float) -> None:
        if all(x.a.dtype == np.float32 for x in self.p):
            self.kept.append(np.full(3 * SIZE * SIZE, v, np.float32))
            for k, x in enumerate(self.p):
                x.a = self.kept[-1][16 * k : 16 * k + 16].reshape(SIZE, SIZE)


def finding(seed: int, library: Any) -> str | None:
    """What differs from the oracle in the program of this number, after which instruction; None for nothing."""
    momentum, lines = program(seed)
    machine, oracle, exact = Tensors(library), Arrays(), True
    for at, line in enumerate(lines):
        exact = exact and line[0] not in INEXACT
        try:
            came = machine.run(*line)
        except Exception as error:
            return f"program {seed}, momentum {momentum}: {lines[: at + 1]}\n  {type(error).__name__}: {error}"
        should = oracle.run(*line)
        pairs = list(zip(machine.numbers(), oracle.numbers(), strict=True))
        pairs += [] if should is None else [(came, should)]
        for k, (a, b) in enumerate(pairs):
            if not (np.array_equal(a, b) if exact else np.allclose(a, b, 1e-5, 1e-6)):
                return f"program {seed}, momentum {momentum}: {lines[: at + 1]}\n  tensor {k}: {a} should be {b}"
    return None


def ampkit_library() -> Any:
    """ampkit, by the names that a program uses."""
    import ampkit
    from ampkit import nn, ops, optim

    names = ("tensor", "full", "eye", "no_grad", "autocast", "bfloat16", "float32")
    return SimpleNamespace(nn=nn, optim=optim, linear=ops.linear, **{name: getattr(ampkit, name) for name in names})


def main(library: Any, arguments: list[str] | None = None) -> int:
    """Run programs; the number of those that differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    found = [f for seed in range(asked.seed, asked.seed + asked.programs) if (f := finding(seed, library))]
    print("\n".join([*found[:5], f"{asked.programs} programs, {len(found)} differ"]))
    return len(found)


if __name__ == "__main__":
    sys.exit(main(ampkit_library()) > 0)

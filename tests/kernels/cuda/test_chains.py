"""Elementwise launches of a recorded step run together, with the bits of eager calls, and nothing reads too early."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from core.test_fused_programs import SHAPE, Program
from cuda_on_cpu import emulator, streams

import ampkit
from ampkit import ops
from ampkit.backends.cuda.launch import chains
from ampkit.backends.launch_queue import queue

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")


def tensors(count: int = 3, dtype: Any = ampkit.bfloat16, shape: tuple[int, ...] = (24, 40)) -> list[Any]:
    random = np.random.default_rng(0)
    made = [ampkit.tensor(random.normal(size=shape).astype(np.float32), device="cuda") for _ in range(count)]
    return [one.to(dtype).detach().requires_grad_() for one in made]


def bits(found: Any) -> list[bytes]:
    return [one.numpy(force=True).tobytes() for one in (found if isinstance(found, (tuple, list)) else [found])]


def same(step: Any, given: list[Any], recorded: bool = True) -> Any:
    """Assert that a recorded step gives the bits of an eager one. -> its report."""
    expected, compiled = bits(step(*given)), ampkit.compile(step, warmup=1)
    with streams.races() as found:
        for _ in range(4):
            assert bits(compiled(*given)) == expected
    assert not found
    assert not queue.active
    assert not queue.waiting
    report = compiled.report()
    assert bool(report.graphs) == recorded, report.eager_because
    return report


def names(report: Any) -> list[tuple[str, ...]]:
    return [chain.names for chain in report.chains]


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16, ampkit.float16])
def test_a_chain_and_its_gradients_are_two_kernels(dtype, device):
    def step(x: Any, y: Any, z: Any) -> Any:
        out = ops.tanh(ops.silu(x) * y + z)
        return (out.detach(), *ampkit.grad(out * out, (x, y, z), ampkit.ones_like(out)))

    report = same(step, tensors(dtype=dtype))
    assert len(report.chains) == 2
    assert report.bytes_after < 0.6 * report.bytes_before


def test_what_nothing_holds_is_never_stored(device):
    def step(x: Any, y: Any, z: Any) -> Any:
        return (ops.silu(x) * y + z).exp()

    with ampkit.no_grad():
        (chain,) = same(step, tensors()).chains
    assert (chain.names, chain.stored) == (("Silu", "Mul", "Add", "Exp"), 1)
    assert chain.after == 4 * 2 * 24 * 40


def test_what_is_held_and_not_needed_is_computed_anew_where_it_is_needed(device):
    def step(x: Any, y: Any, z: Any) -> Any:
        gate = ops.silu(x)  # held by the tape, and by `step`
        out = gate * y
        total = ops.cumsum(out.float(), -1)
        return (gate * z).detach(), total.detach()

    report = same(step, tensors())
    assert [chain.stored for chain in report.chains] == [1, 1]
    assert names(report) == [("Silu", "Mul", "Copy"), ("Silu", "Mul")]


def test_operands_may_be_broadcast_transposed_sliced_and_numbers(device):
    def step(x: Any, y: Any, row: Any, column: Any) -> Any:
        first = x * row + column
        turned = ops.relu(first) * y.T - 0.37
        part = turned[:, 1::2] * first[:, ::2]
        again = (part * 2.0).reshape(-1) + 1.0
        return turned, part, again, (turned > 0) & (x > row), ampkit.where(x > 0, turned, column)

    x, y = tensors(1, ampkit.float32)[0], tensors(1, ampkit.bfloat16, (40, 24))[0]
    row, column = tensors(1, ampkit.float16, (40,))[0], tensors(1, ampkit.float32, (24, 1))[0]
    with ampkit.no_grad():
        same(step, [x, y, row, column])


def test_launches_whose_results_lie_otherwise_in_memory_share_a_kernel(device):
    def step(x: Any, y: Any) -> Any:
        turned = x.transpose(1, 2)
        first = turned * 0.5
        return ops.silu(first) + y * 2.0, first, y - first

    x, y = tensors(1, ampkit.bfloat16, (3, 4, 5, 16))[0], tensors(1, ampkit.float32, (3, 5, 4, 16))[0]
    with ampkit.no_grad():
        (chain,) = same(step, [x, y]).chains
    assert (len(chain.names), chain.stored) == (5, 3)


def test_inputs_that_change_in_place_have_their_former_values_in_what_waits(device):
    def step(x: Any, y: Any, z: Any) -> Any:
        memory = z * 1.0
        first = ops.silu(x) * memory
        memory.add_(1.0)
        second = first * memory
        memory[3:5] = 7.0
        third = second + memory
        memory.zero_()
        return first, second, third, memory

    with ampkit.no_grad():
        same(step, tensors())


def test_long_chains_are_cut(device):
    def step(x: Any, y: Any, z: Any) -> Any:
        out, held = x, []
        for i in range(40):
            out = ops.sin(out) * y + z * (0.1 * i)
            held.append(out)
        return out, *held[::3]

    with ampkit.no_grad():
        report = same(step, tensors(dtype=ampkit.float32))
    assert max(len(chain.names) for chain in report.chains) <= chains.MAX_STEPS


class Recordable(Program):
    """Its random operations on given tensors, without those that need the host; gradients are returned."""

    def __call__(self, *given: Any) -> list[Any]:
        pool, leaves = list(given), list(given)
        for what, *choices in self.plan:
            full = [one for one in pool if tuple(one.shape) == SHAPE]
            made = self._made(what % 19, [full[c % len(full)] for c in choices], leaves, choices)
            if made is not None:
                pool.append(made)
            if what % 7 == 0 and len(full) > 3:
                pool = [one for one in pool if one is not full[choices[1] % len(full)]]
        last = [one for one in pool if tuple(one.shape) == SHAPE and one.requires_grad]
        grads: Any = ()
        if last:
            grads = ampkit.grad(last[-1], leaves, ampkit.ones_like(last[-1]), allow_unused=True)
        return [*[one.detach() for one in pool[len(given) :]], *[one for one in grads if one is not None]]

    def _made(self, what: int, pick: list[Any], leaves: list[Any], choices: list[int]) -> Any:
        x, y, z, _ = pick
        if what < 15:
            return super()._made(what, pick, leaves, choices)
        if what == 15:
            return ops.cat([y[:1].to(x.dtype), x[1:]], 0)
        if what == 16:
            return ops.layer_norm(x * 0.7 + y.to(x.dtype), SHAPE[1:]).to(z.dtype)
        labels = ampkit.arange(SHAPE[0]) + choices[1] % 16
        scores = (x * 0.5 + y.to(x.dtype)).to(z.dtype)
        loss = ops.cross_entropy(scores, labels, reduction="none", label_smoothing=0.25 * (what - 17))
        return loss[:, None].to(z.dtype) * z


@pytest.mark.parametrize("leaves", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("seed", range(3))
def test_random_programs_have_the_bits_of_eager_ones(seed, leaves, device):
    ampkit.set_default_device("cuda")
    program = Recordable(seed, leaves)
    given = [ampkit.tensor(values).to(dtype).detach().requires_grad_(leaves) for values, dtype in program.made]
    same(program, given)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("error: no such type\nline 2")])
def test_a_kernel_that_cannot_be_compiled_or_cached_leaves_launches_apart(error, device, monkeypatch):
    entry = device.kernels.entry

    def refusing(source: str, name: str) -> Any:
        if "\n" in source:
            raise error
        return entry(source, name)

    monkeypatch.setattr(device.kernels, "entry", refusing)
    monkeypatch.setattr(chains, "_told", set())

    def step(x: Any, y: Any, z: Any) -> Any:
        out = ops.silu(x) * y + z
        return (out.detach(), *ampkit.grad(out * out, (x, y, z), ampkit.ones_like(out)))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        report = same(step, tensors())
    assert not report.chains
    assert [str(one.message).count("runs launch by launch") for one in said] == [1]
    assert "\n" not in str(said[0].message)
    assert any("does not compile" in reason for reason in report.alone)


def test_a_step_that_fails_while_it_is_recorded_leaves_nothing_waiting(device):
    fails = [False]

    def step(x: Any) -> Any:
        out = ops.silu(x) * x
        if fails[0]:
            raise MemoryError("of the host")
        return out + 1.0

    (x,), compiled = tensors(1), ampkit.compile(step, warmup=1)
    with ampkit.no_grad():
        compiled(x)
        fails[0] = True
        for _ in range(2):
            with pytest.raises(MemoryError):
                compiled(x)
        assert not queue.waiting
        fails[0] = False
        assert bits(compiled(x)) == bits(step(x))

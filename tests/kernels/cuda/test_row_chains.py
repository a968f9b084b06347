"""Reductions of rows in a recorded step share a kernel with their prologue and epilogue, with eager bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import emulator
from kernels.cuda.test_chains import names, same, tensors

import ampkit
from ampkit import ops
from ampkit.backends.cuda.launch import row_chains

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
WARP, BLOCK, ODD, ODD_BLOCK = (3, 4, 104), (2, 3, 1032), (5, 33), (3, 1027)


def norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return x * ops.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize(("shape", "dtype"), [(WARP, "bfloat16"), (BLOCK, "float32"), (ODD, "float16")], ids=str)
def test_a_norm_in_plain_ops_is_a_kernel_and_its_gradient_two(shape, dtype, device):
    def step(x: Any, branch: Any, z: Any, weight: Any) -> Any:
        total = x + branch
        out = norm(total, weight).to(ampkit.bfloat16)
        loss = out.float() * z
        return (out.detach(), *ampkit.grad(loss, (x, branch, weight), ampkit.ones_like(loss)))

    given = [*tensors(2, getattr(ampkit, dtype), shape), *tensors(1, ampkit.float32, shape)]
    report = same(step, [*given, *tensors(1, ampkit.float32, shape[-1:])])
    reduced = [each for each in names(report) if "Add of rows" in each]
    assert [len(each) > 3 for each in reduced] == [True, True], names(report)
    assert reduced[0][:5] == ("Add", "Mul", "Add of rows", "Add", "Rsqrt")


@pytest.mark.parametrize("shape", [WARP, ODD_BLOCK], ids=str)
def test_softmax_in_plain_ops_is_one_kernel(shape, device):
    def step(x: Any, y: Any) -> Any:
        scores = x * 0.3 + y
        shifted = (scores - scores.amax(-1, keepdim=True)).exp()
        return shifted / shifted.sum(-1, keepdim=True)

    with ampkit.no_grad():
        (chain,) = same(step, tensors(2, ampkit.float32, shape)).chains
    assert chain.after == 3 * 4 * int(np.prod(shape))


def test_operands_lie_as_they_like_and_results_have_any_rank(device):
    def step(x: Any, turned: Any, column: Any, row: Any, part: Any, number: Any) -> Any:
        first = x * turned.transpose(-1, -2) + column
        flat = (first * part[..., ::2]).reshape(12, 64)
        sums = (flat * row).sum(1)  # which has fewer axes
        again = flat * sums.unsqueeze(-1) + number
        return again, (again * again).amax(-1), sums * number, first.mean((1, 2)), flat.amin(1) > 0

    given = tensors(1, ampkit.bfloat16, (3, 4, 64)) + tensors(1, ampkit.float32, (3, 64, 4))
    given += tensors(1, ampkit.float16, (3, 4, 1)) + tensors(1, ampkit.float32, (64,))
    given += tensors(1, ampkit.bfloat16, (3, 4, 128)) + tensors(1, ampkit.float32, ())
    with ampkit.no_grad():
        report = same(step, given)
    assert any("Add of rows" in each for each in names(report))


@pytest.mark.parametrize("vector", [64, 65])
def test_sums_that_overflow_and_nan_and_subnormal_numbers_are_those_of_the_reduction(vector, device):
    values = np.random.default_rng(0).normal(size=(6, vector)).astype(np.float32)
    values[0] *= 1e38
    values[1] = 3e38 * np.where(np.arange(vector) % 2, 1, -1)
    values[2, 3], values[3, 5] = np.nan, np.inf
    values[4] *= 1e-24  # whose squares are too small
    x = ampkit.tensor(values, device="cuda")

    def step(x: Any) -> Any:
        doubled = x * 1.5
        largest = doubled.amax(-1, keepdim=True)
        total = doubled.sum(-1, keepdim=True)
        return total, largest, (doubled - largest).mean(-1), (x * x).sum(-1) * 0.5, doubled / total

    report = same(step, [x])
    assert any({"Add of rows", "Maximum of rows"} <= set(each) for each in names(report))


def test_a_reduction_whose_input_others_read_and_that_changes_in_place_has_the_former_values(device):
    def step(x: Any, y: Any) -> Any:
        memory = x * 2.0
        total = (memory * y).sum(-1, keepdim=True)
        memory.add_(1.0)
        first = memory - total
        memory[1:2] = 0.0
        return first, memory, total, first.mean(-1)

    with ampkit.no_grad():
        same(step, tensors(2, ampkit.float32, (4, 40)))


def test_many_reductions_one_after_the_other_are_cut(device, monkeypatch):
    def step(x: Any, y: Any) -> Any:
        for _ in range(5):
            x = norm(x * 0.9 + y, y)
        return x

    monkeypatch.setattr(row_chains, "MAX_STEPS", 12)
    with ampkit.no_grad():
        report = same(step, tensors(2, ampkit.float32, (4, 24)))
    assert len(report.chains) > 1

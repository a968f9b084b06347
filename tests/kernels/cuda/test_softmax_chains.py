"""softmax and log_softmax in a recorded step share a kernel with their prologue and epilogue, with eager bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import emulator
from kernels.cuda.test_chains import names, same, tensors

import ampkit
from ampkit import ops

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
TITLES = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


@pytest.mark.parametrize("kind", TITLES)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3, 4, 104), "bfloat16"), ((1, 1000), "float32"), ((5, 33), "float16"), ((2, 1032), "bfloat16")],
    ids=str,
)
def test_a_softmax_computes_its_prologue_and_its_epilogue(kind, shape, dtype, device):
    def step(scores: Any, bias: Any, z: Any) -> Any:
        out = getattr(ops, kind)(scores * 0.125 + bias, -1)
        low = out.to(ampkit.bfloat16) * 2.0
        grads = ampkit.grad(low, (scores, bias), z)
        return low.detach(), (grads[0] * 3.0).detach(), grads[1]

    scores, bias = tensors(2, getattr(ampkit, dtype), shape)
    report = same(step, [scores, bias, tensors(1, ampkit.bfloat16, shape)[0].detach()])
    title = TITLES[kind]
    (forward,) = [each for each in names(report) if title in each]
    assert forward[:2] == ("Mul", "Add") and forward[forward.index(title) + 1 :][-1] == "Mul"
    (backward,) = [each for each in names(report) if f"{title} backward" in each]
    assert backward.index(f"{title} backward") not in (0, len(backward) - 1)


@pytest.mark.parametrize(
    ("rows", "cols"), [(2, 1031), (1, 60000), (1, 60001)]
)  # shared memory keeps a part of the last two
def test_long_rows_compute_their_prologue_again(rows, cols, device):
    def step(x: Any, y: Any) -> Any:
        out = ops.softmax(x * 2.0 - y, -1)
        other = ops.log_softmax(x.exp(), -1) + 1.0
        return other.detach(), *ampkit.grad(out * 5.0, (x, y), y.detach())

    report = same(step, tensors(2, ampkit.float32, (rows, cols)))
    assert any(each[:3] == ("Mul", "Sub", "Softmax") for each in names(report))


def test_scores_that_mask_and_share_a_bias_are_read_where_they_lie(device):
    def step(q: Any, k: Any, mask: Any, bias: Any) -> Any:
        scores = (q @ k.transpose(-1, -2)) * 0.25 + bias
        weights = ops.softmax(scores.masked_fill(mask, float("-inf")), -1)
        loss = (weights @ k).square()
        return ampkit.grad(loss, (q, k, bias), ampkit.ones_like(loss))

    q, k = tensors(2, ampkit.float32, (2, 3, 24, 16))
    mask = ampkit.tensor(np.triu(np.ones((24, 24), bool), 1), device="cuda")
    report = same(step, [q, k, mask, tensors(1, ampkit.float32, (3, 1, 24))[0]])
    (forward,) = [each for each in names(report) if "Softmax" in each]
    assert forward[-1] == "Softmax" and len(forward) == 4


def test_a_softmax_whose_result_is_needed_by_columns_or_is_not_needed(device):
    def step(x: Any, y: Any) -> Any:
        ops.softmax(x + y, -1)
        first = ops.softmax(x * y, -1)
        return (
            first.sum(0),
            ops.softmax((y * 2.0).T.contiguous(), -1),
            ops.softmax(x * 0.5, 0),
            ops.softmax(x[:, 1:] * 2.0, -1),
        )

    with ampkit.no_grad():
        same(step, tensors(2, ampkit.float32))

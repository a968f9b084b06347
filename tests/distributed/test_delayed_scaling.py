"""Delayed scaling under DistributedDataParallel: every rank has the largest magnitudes of all."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import Policy, autocast, nn, optim, tensor
from ampkit.core.policy import delayed
from ampkit.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.no_gpu
INPUTS = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)
POLICY = Policy("float8", recipe="delayed")


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x, right):
        return self.right(x) if right else self.left(x)


def values(model):
    return {name: value.numpy(force=True).copy() for name, value in model.state_dict().items()}


def test_ranks_agree_on_scales_and_the_first_rank_s_state_resumes_all():
    ampkit.manual_seed(0)
    start = nn.Linear(8, 4).state_dict()

    def train(model, group, steps):
        together, optimizer = DistributedDataParallel(model, process_group=group), optim.SGD(model.parameters(), lr=0.1)
        mine = tensor(INPUTS[group.rank() :: group.size()] * (1 + group.rank()))
        for _ in range(steps):
            with autocast(policy=POLICY):
                loss = (together(mine) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return values(model)

    def program(group):
        model = nn.Linear(8, 4)
        model.load_state_dict(start)
        first = train(model, group, 3)
        resumed = nn.Linear(8, 4)
        if group.rank() == 0:
            resumed.load_state_dict(model.state_dict())
        return first, train(model, group, 2), train(resumed, group, 2)

    one, two = on_ranks(2, program)
    for mine, theirs in zip(one, two, strict=True):
        for name, value in mine.items():
            np.testing.assert_array_equal(value, theirs[name], name)
    for name, value in one[1].items():
        np.testing.assert_array_equal(value, one[2][name], name)
    largest = np.abs(INPUTS[1::2] * 2).astype(np.float32).max()
    state = one[0]["weight.delayed_scaling"]
    assert abs(state[delayed.INPUT, 1] - largest) < 0.01 * largest  # as bfloat16
    assert state[delayed.INPUT, 0] == np.float32(448) / state[delayed.INPUT, 1]


def test_a_rank_that_does_not_use_a_layer_has_the_magnitudes_of_those_that_do():
    def program(group):
        model = Branches()
        together = DistributedDataParallel(model, process_group=group, find_unused_parameters=True)
        with autocast(policy=POLICY):
            loss = together(tensor(INPUTS), group.rank() == 1).sum()
        loss.backward()
        return values(model)

    one, two = on_ranks(2, program)
    assert {name for name in one if name.endswith(delayed.SUFFIX)} == {
        "left.weight.delayed_scaling",
        "right.weight.delayed_scaling",
    }
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], name)
    assert one["right.weight.delayed_scaling"][delayed.INPUT, 1] > 1

"""DeterministicDataParallel of parameters that fully_shard shares out: the bits of one process that has them all."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.thread_ranks import ThreadMesh, clipped_step, on_mesh, on_ranks

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import StateError
from ampkit.core import random
from ampkit.distributed import DeterministicDataParallel, MixedPrecisionPolicy, fully_shard
from ampkit.distributed.deterministic import microbatches
from ampkit.optim import clip

pytestmark = pytest.mark.no_gpu

SAMPLES, STEPS = 16, 3
SCALE = 18  # in float16 the first step overflows


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.drop, self.down = nn.LayerNorm(9), nn.Linear(9, 7), nn.Dropout(0.3), nn.Linear(7, 9)

    def forward(self, x):
        return x + self.down(self.drop(ops.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    """A block that is called twice, one that is recomputed, statistics, a layer that few samples use, a tied weight."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(11, 9), nn.BatchNorm1d(9)
        self.twice, self.again, self.plain = Block(), Block(), Block()
        self.sometimes, self.never = nn.Linear(9, 9), nn.Linear(9, 9)

    def forward(self, x):
        y = self.twice(self.norm(self.table(x)))
        y = ampkit.recompute(self.again, y)
        y = self.plain(self.twice(y))
        if x[0].item() > 5:
            y = self.sometimes(y)
        return ops.linear(y, self.table.weight)


def batch(step):
    draw = np.random.default_rng(step)
    return draw.integers(0, 11, SAMPLES), draw.integers(0, 11, SAMPLES)


def train(group=None, *, stage=0, dtype="float32", threads=1, accumulate=1):
    """The weights and moments after some steps, and the losses and norms."""
    with random.drawing_from(random.Stream(5)):
        model = Net()
        if stage:
            for part in (model.twice, model.again, model.plain):
                fully_shard(part, mesh=group, reshard_after_forward=stage == 3)
            fully_shard(model, mesh=group, reshard_after_forward=stage == 3)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        scaler = ampkit.GradScaler(enabled=dtype == "float16", init_scale=2.0**SCALE)
        parallel = DeterministicDataParallel(model, 8, group, threads=threads)

        def loss_of(model, x, y):
            with ampkit.autocast(dtype=dtype, enabled=dtype != "float32"):
                return ops.cross_entropy(model(x), y)

        measured = []
        for step in range(STEPS):
            mine = [[values[2 * i : 2 * i + 2] for i in parallel.mine] for values in batch(step)]
            x, y = (np.concatenate(parts) for parts in mine)
            parts = zip(np.split(x, accumulate), np.split(y, accumulate), strict=True)
            given = [tuple(map(ampkit.tensor, both)) for both in parts]
            loss = parallel.forward_backward(loss_of, given, scaler)
            norm = clipped_step(model, optimizer, scaler)
            measured += map(repr, (loss.item(), norm.item(), scaler.get_scale()))
        state = optimizer.state_dict()["state"]
        tensors = [*model.state_dict().values(), *(value for each in state.values() for value in each.values())]
        whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in tensors]
        return measured, b"".join(tensor.numpy(force=True).tobytes() for tensor in whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_shared_out_parameters_give_the_bits_of_one_process(dtype):
    expected = train(dtype=dtype, threads=2)
    assert dtype != "float16" or [each == "nan" for each in expected[0][1::3]] == [True, False, False]
    for size, stage, accumulate in ((1, 3, 1), (2, 2, 2), (2, 3, 1), (4, 3, 2), (8, 2, 1)):
        options = {"stage": stage, "accumulate": accumulate, "dtype": dtype, "threads": 2}
        assert on_ranks(size, lambda group, options=options: train(group, **options)) == [expected] * size


def test_norms_have_the_same_bits_before_they_are_rounded(monkeypatch):
    found = []
    root = clip._root
    monkeypatch.setattr(clip, "_root", lambda total, *rest: (found.append(total.item()), root(total, *rest))[1])
    train()
    alone = set(found)
    for size in (2, 4, 8):
        on_ranks(size, lambda group: train(group, stage=3))
    assert len(alone) == STEPS and set(found) == alone


def test_a_backward_of_ones_own_averages_as_ever():
    def program(group):
        with random.drawing_from(random.Stream(5)):
            model = fully_shard(nn.Linear(4, 4), mesh=group)
            parallel = DeterministicDataParallel(model, 4, group)
            x = ampkit.full((2, 4), group.rank() + 1.0)
            with pytest.raises(ZeroDivisionError):
                parallel.forward_backward(lambda model, x: model(x).sum() / (1 // 0), [(x,)])
            parallel.forward_backward(lambda model, x: model(x).sum(), [(x,)])
            model.zero_grad()
            model(x).sum().backward()
            return model.bias.grad.full_tensor().numpy(), model.weight.grad.full_tensor().numpy()

    for bias, weight in on_ranks(2, program):
        assert (bias == 2).all() and (weight == 3).all()


def test_a_rank_holds_its_rows_of_gradients_between_microbatches(monkeypatch):
    held = []
    add = microbatches.TreeSum.add
    monkeypatch.setattr(
        microbatches.TreeSum, "add", lambda *given: (held.append(sum(g.size for g in given[2])), add(*given))
    )
    on_ranks(4, lambda group: train(group, stage=3))
    assert max(held) < 0.35 * sum(parameter.numel() for parameter in Net().parameters())


def test_what_does_not_give_equal_bits_is_refused():
    def refused(group, model, text):
        with pytest.raises(StateError, match=text):
            DeterministicDataParallel(model, 8, group)

    def program(group):
        part = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        fully_shard(part[0], mesh=group)
        refused(group, part, "a module that fully_shard has shared out, as a whole, or parallel.* shards, got parts of")
        ignored = nn.Linear(4, 4)
        fully_shard(ignored, mesh=group, ignored_params=[ignored.bias])
        refused(group, ignored, "got 'bias', which each has all of")
        policy = MixedPrecisionPolicy(param_dtype=ampkit.bfloat16)
        refused(group, fully_shard(nn.Linear(4, 4), mesh=group, mp_policy=policy), "got a MixedPrecisionPolicy with")

    on_ranks(2, program)

    def copies(world, *groups):
        model = fully_shard(nn.Linear(4, 4), mesh=ThreadMesh(world, *groups))
        refused(world, model, r"got some that ranks \[.*\] share out")

    on_mesh((2, 2), copies)

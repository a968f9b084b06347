"""Deterministic schedules of pipelines of ranks that are threads: the bits of DeterministicDataParallel."""

from __future__ import annotations

import pytest
from distributed.test_pipelining import X, Y, make, merged, same, scaler_of, stage_of
from distributed.thread_ranks import on_mesh, on_ranks

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, StateError
from ampkit.core import random
from ampkit.distributed import DeterministicDataParallel, fully_shard
from ampkit.distributed.pipelining import PipelineStage, Schedule1F1B

pytestmark = pytest.mark.no_gpu


def train_deterministic(group, replicas, count, scales, steps=3):
    stage = stage_of(group)
    scaler, optimizer = scaler_of(scales), optim.AdamW(stage.submod.parameters(), lr=1e-2)
    schedule = Schedule1F1B(stage, count, ops.cross_entropy, scaler=scaler, deterministic=True, replicas=replicas)
    rank, size = (0, 1) if replicas is None else (replicas.rank(), replicas.size())
    rows = slice(16 // size * rank, 16 // size * (rank + 1))
    with random.drawing_from(random.Stream(7)):
        for step in range(steps):
            with ampkit.autocast(dtype=ampkit.float16, enabled=scales):
                schedule.step(X[step][rows], target=Y[step][rows])
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return {n: p.numpy(force=True) for n, p in stage.submod.named_parameters()}


@pytest.mark.parametrize("scales", [False, True], ids=["float32", "float16"])
def test_deterministic_stages_have_the_bits_of_deterministic_data_parallelism(scales):
    model = make()
    scaler, optimizer = scaler_of(scales), optim.AdamW(model.parameters(), lr=1e-2)
    parallel = DeterministicDataParallel(model, microbatches=8, threads=1)

    def loss_of(model, x, y):
        with ampkit.autocast(dtype=ampkit.float16, enabled=scales):
            return ops.cross_entropy(model(x), y)

    with random.drawing_from(random.Stream(7)):
        for step in range(3):
            parallel.forward_backward(loss_of, [(X[step], Y[step])], scaler)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    expected = {n: p.numpy(force=True) for n, p in model.named_parameters()}
    for size in (1, 3):
        assert same(merged(on_ranks(size, lambda g: train_deterministic(g, None, 8, scales))), expected)
    parts = on_mesh((2, 2), lambda world, replicas, stages: train_deterministic(stages, replicas, 4, scales))
    assert same(merged(parts[:2]), expected) and same(merged(parts[2:]), expected)


def test_what_has_no_deterministic_gradients_is_refused():
    def program(group):
        model = nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Linear(12, 5))
        stage = PipelineStage(model, 0, 1, group=group)
        with pytest.raises(ArgumentError, match="a power of 2 of micro-batches on all replicas, got 3"):
            Schedule1F1B(stage, 3, ops.cross_entropy, deterministic=True)
        with pytest.raises(ArgumentError, match="deterministic=True with replicas"):
            Schedule1F1B(stage, 2, ops.cross_entropy, replicas=group)
        with pytest.raises(StateError, match="buffers as they are, got '1.running_mean' changed"):
            Schedule1F1B(stage, 2, ops.cross_entropy, deterministic=True).step(X[0], target=Y[0])
        model.eval()(X[0]).sum().backward()
        with pytest.raises(StateError, match="parameters without gradients"):
            Schedule1F1B(stage, 2, ops.cross_entropy, deterministic=True).step(X[0], target=Y[0])
        shared = PipelineStage(fully_shard(make(), mesh=group), 0, 1, group=group)
        with pytest.raises(StateError, match="with deterministic=True, got parameters that ranks share out"):
            Schedule1F1B(shared, 2, ops.cross_entropy, deterministic=True)

    on_ranks(1, program)

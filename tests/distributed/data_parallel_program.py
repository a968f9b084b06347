"""DistributedDataParallel on the ranks that mpiexec starts, compared with one process that has the whole batch.

mpiexec -n 3 python tests/distributed/data_parallel_program.py
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from program_device import on_device_of

import ampkit
from ampkit import distributed as dist
from ampkit import nn, ops, optim
from ampkit.base.errors import StateError
from ampkit.nn.parallel import DistributedDataParallel

backend = on_device_of(sys.argv)
dist.init_process_group(backend, timeout=30)
RANK, SIZE = dist.get_rank(), dist.get_world_size()
BATCH = 24
NUMBERS = np.random.default_rng(0)
INPUTS = NUMBERS.standard_normal((20, BATCH, 20)).astype(np.float32)
TARGETS = NUMBERS.integers(0, 5, (20, BATCH))
MINE = slice(BATCH * RANK // SIZE, BATCH * (RANK + 1) // SIZE)


def model(seed: int = 0) -> nn.Module:
    ampkit.manual_seed(seed)
    layers = [nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 5)]
    return nn.Sequential(*layers)


def weights(of: nn.Module) -> np.ndarray:
    return np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in of.parameters()])


def loss_of(of: nn.Module, step: int, part: slice) -> ampkit.Tensor:
    return ops.cross_entropy(of(ampkit.tensor(INPUTS[step, part])), ampkit.tensor(TARGETS[step, part]))


def train(of: nn.Module, part: slice, make: object, clip: float | None = 1.0) -> np.ndarray:
    optimizer, scaler = make(of.parameters()), ampkit.GradScaler(init_scale=2.0**10)
    for step in range(len(INPUTS)):
        scaler.scale(loss_of(of, step, part)).backward()
        scaler.unscale_(optimizer)
        if clip is not None:
            optim.clip_grad_norm_(of.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return weights(of)


def need_equal_on_all_ranks(values: np.ndarray) -> None:
    found: list[object] = [None] * SIZE
    dist.all_gather_object(found, values.tobytes())
    assert all(each == found[0] for each in found)


def relative(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def whole_batch() -> None:
    makers = [lambda p: optim.SGD(p, lr=0.1, momentum=0.9), lambda p: optim.AdamW(p, lr=1e-3, weight_decay=0.1)]
    for make in makers:
        alone = train(model(), slice(None), make)
        for options in ({}, {"bucket_cap_mb": 0.002}, {"wire_dtype": "bfloat16"}):
            together = train(DistributedDataParallel(model(RANK), **options), MINE, make)  # rank 0's weights count
            need_equal_on_all_ranks(together)
            assert relative(together, alone) < (0.01 if options.get("wire_dtype") else 1e-6), options


def gradients() -> None:
    alone, together = model(), DistributedDataParallel(model(), bucket_cap_mb=0.002)
    loss_of(alone, 0, slice(None)).backward()
    loss_of(together, 0, MINE).backward()
    for one, other in zip(alone.parameters(), together.parameters(), strict=True):
        assert np.allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-6)
    with together.no_sync():
        loss_of(together, 1, MINE).backward()
        loss_of(together, 2, MINE).backward()
    loss_of(together, 3, MINE).backward()
    for step in (1, 2, 3):
        loss_of(alone, step, slice(None)).backward()
    for one, other in zip(alone.parameters(), together.parameters(), strict=True):
        assert np.allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-5)
    assert list(together.state_dict()) == [f"module.{name}" for name in alone.state_dict()]


def skipped_steps() -> None:
    """An inf in the data of one rank skips the step of all, and the scale backs off on all."""
    together = DistributedDataParallel(model())
    optimizer, scaler = optim.SGD(together.parameters(), lr=0.1), ampkit.GradScaler(init_scale=4.0)
    averaged = optim.swa_utils.AveragedModel(together.module)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(4):
        inputs = INPUTS[step, MINE].copy()
        inputs[0, 0] = np.inf if step == 1 and RANK == SIZE - 1 else 0
        loss = ops.cross_entropy(together(ampkit.tensor(inputs)), ampkit.tensor(TARGETS[step, MINE]))
        scaler.scale(loss).backward()
        assert scaler.step(optimizer).skipped == (step == 1)
        scaler.update()
        schedule.step()
        averaged.update_parameters(together.module)
        optimizer.zero_grad()
    assert scaler.get_scale() == 2.0
    assert float(optimizer.param_groups[0]["lr"]) == 0.1 / 8
    need_equal_on_all_ranks(weights(together))
    need_equal_on_all_ranks(weights(averaged))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.left, self.right, self.never = (nn.Linear(20, 5) for _ in range(4))
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: ampkit.Tensor, left: bool) -> ampkit.Tensor:
        return self.norm(self.shared(x) + (self.left(x) if left else self.right(x)))


def unused_parameters() -> None:
    x = ampkit.tensor(INPUTS[0, MINE])
    for held in (False, True):
        together = DistributedDataParallel(Branches(), find_unused_parameters=True)
        optimizer = optim.SGD(together.parameters(), lr=0.1) if held else None
        together(x, RANK == 0).sum().backward()
        branches = together.module
        assert branches.never.weight.grad is None
        assert (branches.right.weight.grad is None) == (SIZE == 1)
        used = [p.grad.numpy().reshape(-1) for p in together.parameters() if p.grad is not None]
        need_equal_on_all_ranks(np.concatenate(used))
        if optimizer is not None:
            optimizer.step()
            need_equal_on_all_ranks(weights(together))
    strict = DistributedDataParallel(Branches())
    with pytest.raises(
        StateError, match=r"a gradient of every parameter, got none of 'right.weight', 'right.bias', 'nev"
    ):
        strict(x, True).sum().backward()


def buffers() -> None:
    together = DistributedDataParallel(Branches(), find_unused_parameters=True)
    for step in range(3):
        together(ampkit.tensor(INPUTS[step, MINE]) * (RANK + 1), True)
    running = together.module.norm.running_mean
    own = running.numpy().copy()
    together(ampkit.tensor(INPUTS[3, MINE]), True)
    theirs: list[object] = [None] * SIZE
    dist.all_gather_object(theirs, own)
    assert SIZE == 1 or not np.array_equal(theirs[0], theirs[-1])  # each rank's own, until the next forward
    assert int(together.module.norm.num_batches_tracked) == 4


def other_models() -> None:
    wrong = nn.Linear(3, 4 if RANK == SIZE - 1 else 5)
    if SIZE > 1:
        needs = r"the same parameters and buffers on all ranks, got \('weight', 'float32 \[5, 3\]', True\) on rank 0"
        with pytest.raises(dist.DistError, match=needs):
            DistributedDataParallel(wrong)


if __name__ == "__main__":
    steps = () if "nccl" in backend else (whole_batch,)  # slow there
    for part in (*steps, gradients, skipped_steps, unused_parameters, buffers, other_models):
        part()
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {RANK} of {SIZE}: data parallelism is right")

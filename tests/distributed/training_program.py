"""Ways to train that a DistributedDataParallel has to follow, each compared with one process that has the whole batch.

mpiexec -n 3 python tests/distributed/training_program.py
"""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import distributed as dist
from ampkit import nn, ops, optim
from ampkit.nn.parallel import DistributedDataParallel

dist.init_process_group("mpi", timeout=30)
RANK, SIZE = dist.get_rank(), dist.get_world_size()
NUMBERS = np.random.default_rng(0)
INPUTS = NUMBERS.standard_normal((12, 24, 16)).astype(np.float32)
TARGETS = NUMBERS.integers(0, 4, (12, 24))
MINE, WHOLE = slice(24 * RANK // SIZE, 24 * (RANK + 1) // SIZE), slice(None)


def layers() -> nn.Module:
    ampkit.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))


def partly_frozen() -> nn.Module:
    model = layers()
    model[2].weight.requires_grad_(False)
    return model


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        ampkit.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.second.weight = self.first.weight

    def forward(self, x: ampkit.Tensor) -> ampkit.Tensor:
        return self.last(self.second(ops.gelu(self.first(x))))


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, x: ampkit.Tensor) -> ampkit.Tensor:
        return self.layers[4](ampkit.recompute(lambda y: self.layers[:4](y), x))


def loss_of(model: nn.Module, step: int, part: slice) -> ampkit.Tensor:
    return ops.cross_entropy(model(ampkit.tensor(INPUTS[step, part])), ampkit.tensor(TARGETS[step, part]))


def weights(model: nn.Module) -> np.ndarray:
    return np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in model.parameters()])


def need_equal_on_all_ranks(model: nn.Module) -> np.ndarray:
    found: list[object] = [None] * SIZE
    dist.all_gather_object(found, weights(model).tobytes())
    assert all(each == found[0] for each in found)
    return weights(model)


def need_same_training(make, train, bound=1e-6) -> None:
    """train(called, model, part): `called` is the model, or what averages its gradients. bound: of relative errors."""
    alone, model = make(), make()
    train(alone, alone, WHOLE)
    train(DistributedDataParallel(model, bucket_cap_mb=0.003), model, MINE)
    expected = weights(alone)
    error = np.linalg.norm(need_equal_on_all_ranks(model) - expected) / np.linalg.norm(expected)
    assert error < bound, (train.__name__, error)


def plain(called, model, part) -> None:
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        loss_of(called, step, part).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulated(called, model, part) -> None:
    optimizer, scaler = optim.AdamW(model.parameters(), lr=1e-3), ampkit.GradScaler(init_scale=1024.0)
    for first in range(0, 12, 3):
        for step in range(first, first + 2):
            with called.no_sync() if called is not model else ampkit.enable_grad():
                scaler.scale(loss_of(called, step, part) / 3).backward()
        scaler.scale(loss_of(called, first + 2, part) / 3).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def frozen_later(called, model, part) -> None:
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        model[0].weight.requires_grad_(not 3 <= step < 6)
        loss_of(called, step, part).backward()
        optimizer.step()
        optimizer.zero_grad()


def trained_later(called, model, part) -> None:
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        model[2].weight.requires_grad_(step > 2)
        loss_of(called, step, part).backward()
        optimizer.step()
        optimizer.zero_grad()


def compiled(called, model, part) -> None:
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @ampkit.compile
    def step(x, t):
        ops.cross_entropy(called(x), t).backward()
        optimizer.step()
        optimizer.zero_grad()

    for number in range(6):
        step(ampkit.tensor(INPUTS[number, part]), ampkit.tensor(TARGETS[number, part]))


def averaged(called, model, part) -> None:
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    average = optim.swa_utils.AveragedModel(model)
    for step in range(6):
        loss_of(called, step, part).backward()
        optimizer.step()
        average.update_parameters(model)
        optimizer.zero_grad()
    need_equal_on_all_ranks(average)


def two_optimizers(called, model, part) -> None:
    last = [*model[2].parameters(), *model[4].parameters()]
    optimizers = [optim.SGD(model[0].parameters(), lr=0.1), optim.AdamW(last, lr=1e-3)]
    for step in range(6):
        loss_of(called, step, part).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def without_optimizer(called, model, part) -> None:
    for step in range(6):
        loss_of(called, step, part).backward()
        with ampkit.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad * 0.1)
                parameter.grad = None


def after_an_error(called, model, part) -> None:
    """A hook that fails on all ranks, after the first bucket was sent, leaves nothing behind."""
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    hook = model[2].weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(called, 0, part).backward()
    hook.remove()
    optimizer.zero_grad()
    plain(called, model, part)


def closures(called, model, part) -> None:
    optimizer = optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(called, 0, part)
        loss.backward()
        loss = loss.detach().clone()
        dist.all_reduce(loss, dist.ReduceOp.AVG)  # all ranks must agree on when to stop
        return loss

    optimizer.step(closure)


def wrapped_again() -> None:
    model = layers()
    for _ in range(2):
        wrapped = DistributedDataParallel(model)
        loss_of(wrapped, 0, MINE).backward()
        del wrapped
    alone = layers()
    for _ in range(2):
        loss_of(alone, 0, WHOLE).backward()
    np.testing.assert_allclose(model[0].weight.grad.numpy(), alone[0].weight.grad.numpy(), 1e-4, 1e-7)
    loss_of(model, 0, slice(RANK, RANK + 1)).backward()  # on each rank for itself


WAYS = [accumulated, frozen_later, compiled, averaged, two_optimizers, without_optimizer, after_an_error]

if __name__ == "__main__":
    for way in WAYS:
        need_same_training(layers, way)
    need_same_training(layers, closures, 1e-4)  # it divides by differences of gradients
    need_same_training(partly_frozen, trained_later)
    need_same_training(Tied, plain)
    need_same_training(Recomputed, plain)
    wrapped_again()
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {RANK} of {SIZE}: all ways to train are right")

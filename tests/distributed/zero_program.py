"""Steps with ZeroRedundancyOptimizer on ranks, whose bits are compared with those of the optimizer that it shares out.

ampkit launch --sockets -n 2 tests/distributed/zero_program.py sockets
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import numpy as np
from program_device import on_device_of

import ampkit
from ampkit import distributed as dist
from ampkit import nn, ops, optim
from ampkit.distributed.optim import ZeroRedundancyOptimizer
from ampkit.nn.parallel import DistributedDataParallel
from ampkit.optim.lr_scheduler import CosineAnnealingLR
from ampkit.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

backend = on_device_of(sys.argv)
dist.init_process_group(backend, timeout=30)
RANK, SIZE = dist.get_rank(), dist.get_world_size()
STEPS, OVERFLOW = 6, 3


class Run:
    """A model that trains in float16 with loss scaling, clipping, accumulation, a schedule and averaged weights."""

    def __init__(self, make, dtype=ampkit.float32):
        ampkit.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 5)).to(dtype)
        self.replica = DistributedDataParallel(self.model)
        self.optimizer = make(self.model.parameters())
        self.scaler = ampkit.GradScaler(init_scale=2.0**10)
        self.schedule = CosineAnnealingLR(self.optimizer, 20)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def step(self, number):
        rng = np.random.default_rng(100 * number + RANK)
        for part in range(2):
            x = ampkit.tensor(rng.standard_normal((8, 20)).astype(np.float32) * (1e6 if number == OVERFLOW else 1.0))
            y = ampkit.tensor(rng.integers(0, 5, 8))
            with self.replica.no_sync() if part == 0 else nullcontext():
                with ampkit.autocast(dtype=ampkit.float16):
                    loss = ops.cross_entropy(self.replica(x), y) / 2
                self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        optim.clip_grad_norm_(self.model.parameters(), 0.5)
        result = self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)
        self.optimizer.zero_grad()
        return bool(result.skipped)

    def weights(self):
        found = [*self.model.parameters(), *self.average.module.parameters()]
        return [parameter.detach().float().cpu().numpy() for parameter in found]


def need_same(a, b, what=""):
    other = [number for number, (x, y) in enumerate(zip(a, b, strict=True)) if not np.array_equal(x, y)]
    assert not other, (what, other)


def arrays(state):
    return {
        (number, name): value.cpu().numpy() if hasattr(value, "cpu") else value
        for number, entry in state["state"].items()
        for name, value in entry.items()
    }


def need_same_state(a, b):
    assert a.keys() == b.keys()
    need_same(a.values(), b.values())


def steps_have_the_bits_of_the_optimizer():
    for kind, options in (
        (optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (optim.Adam, {"lr": 1e-2, "amsgrad": True, "state_dtype": "bfloat16"}),
        (optim.LAMB, {"lr": 1e-2}),
    ):
        for dtype in (ampkit.float32, ampkit.bfloat16):
            plain = Run(lambda params: kind(params, **options), dtype)  # noqa: B023
            state = ampkit.get_rng_state()
            skipped = [plain.step(number) for number in range(STEPS)]
            shared = Run(lambda params: ZeroRedundancyOptimizer(params, kind, **options), dtype)  # noqa: B023
            ampkit.set_rng_state(state)
            assert skipped == [shared.step(number) for number in range(STEPS)]
            assert skipped.index(True) == OVERFLOW
            assert isinstance(shared.optimizer, kind)
            need_same(plain.weights(), shared.weights(), f"{kind.__name__} {options} {dtype}")
            shared.optimizer.consolidate_state_dict(to=SIZE - 1)
            if RANK == SIZE - 1:
                need_same_state(arrays(plain.optimizer.state_dict()), arrays(shared.optimizer.state_dict()))


def a_state_goes_on_in_either():
    make = lambda params: ZeroRedundancyOptimizer(params, optim.AdamW, lr=1e-2)  # noqa: E731
    first = Run(make)
    for number in range(3):
        first.step(number)
    first.optimizer.consolidate_state_dict()
    saved = [first.optimizer.state_dict() if RANK == 0 else None]
    dist.broadcast_object_list(saved)
    weights = first.model.state_dict()
    found = []
    for again in (Run(make), Run(lambda params: optim.AdamW(params, lr=1.0))):
        again.model.load_state_dict(weights)
        again.optimizer.load_state_dict(saved[0])
        again.scaler.load_state_dict(first.scaler.state_dict())
        again.optimizer.param_groups[0]["lr"] = 1e-2
        again.step(4)
        found.append([parameter.detach().cpu().numpy() for parameter in again.model.parameters()])
    need_same(*found)


def each_rank_has_its_part_of_the_state():
    model = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW)
    for parameter in model.parameters():
        parameter.grad = ampkit.ones_like(parameter)
    optimizer.step()
    bytes_here = sum(flat.nbytes for arena in optimizer.param_groups[0].arenas for flat in arena.moment_arrays())
    whole = 8 * sum(parameter.numel() for parameter in model.parameters())
    assert abs(bytes_here - whole / SIZE) < 0.01 * whole / SIZE, (bytes_here, whole)


if __name__ == "__main__":
    for part in (steps_have_the_bits_of_the_optimizer, a_state_goes_on_in_either, each_rank_has_its_part_of_the_state):
        part()
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {RANK} of {SIZE}: sharded optimizers are right")

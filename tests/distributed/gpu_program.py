"""What collectives of GPUs promise beyond their values: no waiting host, streams in order, graphs.

mpiexec -n 2 python tests/distributed/gpu_program.py emulated
mpiexec -n 1 python tests/distributed/gpu_program.py cuda
"""

from __future__ import annotations

import sys

import numpy as np
from program_device import on_device_of

import ampkit
from ampkit import backends, nn, ops, optim
from ampkit import distributed as dist
from ampkit.nn.parallel import DistributedDataParallel

EMULATED = "emulated" in sys.argv
dist.init_process_group(on_device_of(sys.argv), timeout=30)
RANK, SIZE = dist.get_rank(), dist.get_world_size()
NUMBERS = np.random.default_rng(0)
INPUTS = NUMBERS.standard_normal((8, 12, 6, 3, 3)).astype(np.float32)
TARGETS = NUMBERS.integers(0, 5, (8, 12))
MINE = slice(12 * RANK // SIZE, 12 * (RANK + 1) // SIZE)


class Trained:
    """A model with batch normalization, its optimizer and scaler, and a step of them."""

    def __init__(self, synchronized: bool = False) -> None:
        ampkit.manual_seed(0)
        layers = [nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5)]
        model = nn.Sequential(*layers)
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if synchronized else model
        self.model = DistributedDataParallel(model, bucket_cap_mb=0.0005, wire_dtype="bfloat16")
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = ampkit.GradScaler(init_scale=2.0**10)

    def step(self, x: ampkit.Tensor, t: ampkit.Tensor) -> ampkit.Tensor:
        with ampkit.autocast(dtype=ampkit.float16):
            loss = ops.cross_entropy(self.model(x), t)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        optim.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def state(self) -> bytes:
        return b"".join(t.detach().cpu().numpy().tobytes() for t in self.model.state_dict().values())


def batch(number: int) -> tuple[ampkit.Tensor, ampkit.Tensor]:
    return ampkit.tensor(INPUTS[number, MINE]), ampkit.tensor(TARGETS[number, MINE])


def recorded_steps(synchronized: bool) -> None:
    """Graphs that contain the collectives give the bits of eager steps, launched again and again."""
    eager, recorded = Trained(synchronized), Trained(synchronized)
    step = ampkit.compile(recorded.step)
    for number in range(len(INPUTS)):
        losses = [trained(*batch(number)).item() for trained in (eager.step, step)]
        assert losses[0] == losses[1], (number, losses)
    assert eager.state() == recorded.state()
    (graph,) = [kind.graph for kind in step._variants.values()]
    assert graph.recording is not None
    assert SIZE == 1 or len(graph.recording.around) == 1


def messages_to_itself() -> None:
    """A rank sends to itself, eagerly and in a recorded step: what one GPU can show of NCCL's messages."""
    transport = dist.group.WORLD.gpu_transport
    dist.broadcast(ampkit.zeros(1), 0)  # connects the ranks

    def doubled(x: ampkit.Tensor) -> ampkit.Tensor:
        made = x * 2
        received = ampkit.zeros_like(made)
        sent, there = transport._bytes(made.array), transport._bytes(received.array)

        def message() -> None:
            with transport._grouped():
                transport.communicator.send(*sent, RANK, transport.stream.ptr)
                transport.communicator.recv(*there, RANK, transport.stream.ptr)

        transport.enqueue(message, made.array).result()
        return received + 1

    step = ampkit.compile(doubled)
    for number in range(6):
        x = ampkit.full((1000,), float(number), dtype="bfloat16")
        for found in (doubled(x), step(x)):
            assert (found.cpu().float().numpy() == 2 * number + 1).all(), number


def streams_in_order() -> None:
    """Nothing that the streams of backward and of the collectives share is without an order."""
    from cuda_on_cpu import streams

    trained, given = Trained(), [batch(number) for number in range(4)]
    trained.step(*given[0])
    with streams.races() as found:
        for x, t in given[1:]:
            trained.step(x, t)
    assert not found, found


def no_waiting_host() -> None:
    from cuda_on_cpu import emulated_cupy

    trained, given = Trained(True), [batch(number) for number in range(4)]
    trained.step(*given[0])
    before = emulated_cupy.waits[0]
    for x, t in given[1:]:
        trained.step(x, t)
    assert emulated_cupy.waits[0] == before, "the host has waited for the device"


def overlap() -> None:
    """The first bucket is under way before backward has come to the first layer."""
    group, begun = dist.group.WORLD, []
    transport = group.gpu_transport
    if SIZE == 1:
        return
    trained, done, enqueue = Trained(), [], transport.enqueue
    first = next(trained.model.parameters())
    first.register_post_accumulate_grad_hook(done.append)
    loss = ops.cross_entropy(trained.model(batch(0)[0]), batch(0)[1])
    transport.enqueue = lambda action, array: begun.append(len(done)) or enqueue(action, array)
    loss.backward()
    transport.enqueue = enqueue
    assert begun[0] == 0 and len(begun) > 2, begun


if __name__ == "__main__":
    recorded_steps(False)
    recorded_steps(True)
    if SIZE == 1:
        messages_to_itself()
    if EMULATED:
        streams_in_order()
        no_waiting_host()
    overlap()
    assert (dist.group.WORLD.gpu_transport.backend is backends.get("cuda")) or SIZE == 1
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {RANK} of {SIZE}: collectives of GPUs are right")

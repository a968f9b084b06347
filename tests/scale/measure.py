"""A step on the ranks of this machine, predicted from one process and measured.

    ampkit launch --sockets -n 2 tests/scale/measure.py [WIDTH]

One process computes while the other ranks sleep. The machine's own figures come from all ranks: latency and bandwidth
of exchanges, and how much longer the same products take where all compute them at a time. They give a prediction, which
is printed beside the seconds of whole steps. All are measured in turn, so that other programs disturb them alike:
medians.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import ampkit
from ampkit import distributed as dist
from ampkit import ops, optim
from ampkit.distributed import world
from ampkit.nn.parallel import DistributedDataParallel
from scale import cluster
from scale.model import TOKENS, gpt
from scale.trace import Exchange, exchanged

ROUNDS, SIZES = 9, (1 << 12, 1 << 16, 1 << 20)
CALLS, PRODUCTS = 4, 40  # in a round


def seconds_of(action: Callable[[], Any], count: int = 1) -> float:
    """Of an action, by the mean of so many."""
    start = time.perf_counter()
    for _ in range(count):
        action()
    return (time.perf_counter() - start) / count


def main(width: int) -> None:
    dist.init_process_group("sockets")
    ampkit.set_num_threads(1)
    group = world.group.WORLD
    ranks, is_first = group.size(), group.rank() == 0
    model = DistributedDataParallel(gpt(4, width), bucket_cap_mb=1)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    tokens, targets = ampkit.randint(0, TOKENS, (16, 16)), ampkit.randint(0, TOKENS, (16, 16))
    square, buffers = ampkit.randn(width, width), [ampkit.zeros(size // 4) for size in SIZES]
    found: dict[str, list[float]] = {}
    trace: list[Exchange] = []
    exchange = group.transport.exchange_others

    def recorded(call: Any, sent: Any, received: Any) -> None:
        trace.append(exchanged(group.rank(), call, sent, received))
        exchange(call, sent, received)

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    def loss() -> Any:
        return ops.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    def whole() -> None:
        trace.clear()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    def products() -> None:
        for _ in range(PRODUCTS):
            square @ square

    def alone() -> None:
        with model.no_sync():
            note("forward", seconds_of(lambda: losses.append(loss())))
            note("backward", seconds_of(losses.pop().backward))
        note("update", seconds_of(optimizer.step))
        optimizer.zero_grad()

    losses: list[Any] = []
    group.transport.exchange_others = recorded
    for _ in range(2):
        whole()
        products()
    for _ in range(ROUNDS):
        dist.barrier()
        if is_first:
            alone()
            note("products", seconds_of(products))
        dist.barrier()
        note("products of all ranks", seconds_of(products))
        for buffer in buffers:
            dist.barrier()
            note(f"{4 * buffer.numel()} bytes", seconds_of(lambda buffer=buffer: dist.all_reduce(buffer), CALLS))
        dist.barrier()
        note("step", seconds_of(whole))
    if is_first:
        report(ranks, {name: statistics.median(each) for name, each in found.items()}, list(trace))
    dist.destroy_process_group()


def report(ranks: int, seconds: dict[str, float], trace: list[Exchange]) -> None:
    """Print the prediction beside the step. seconds: medians by name; trace: the exchanges of a step."""
    samples = []
    for size in SIZES:
        counts = (0, *[size // ranks] * (ranks - 1))
        samples.append((Exchange("all_reduce", counts, counts), seconds[f"{size} bytes"] / 2))
    machine = cluster.fitted(samples, ranks)
    longer = seconds["products of all ranks"] / seconds["products"]
    computing = [longer * seconds[name] for name in ("forward", "backward", "update")]
    gradients = [each for each in trace if "AVG" in each.says]
    predicted = cluster.step(machine, gradients, *computing, is_beside=ranks < len(os.sched_getaffinity(0)))
    print(f"{ranks} ranks: computing {longer:.2f} times as long, {1e6 * machine.latency:.0f} us a message, "
          f"{machine.bandwidth / 1e9:.2f} GB/s; step measured {1e3 * seconds['step']:.0f} ms, predicted "
          f"{1e3 * predicted.total:.0f} ms ({100 * (predicted.total / seconds['step'] - 1):+.0f} %)")  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)

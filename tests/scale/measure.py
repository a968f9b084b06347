"""A step on the ranks of this machine, predicted from its parts and measured.

    ampkit launch --sockets -n 2 tests/scale/measure.py [WIDTH]

Exchanges of several sizes give latency and bandwidth; steps without communication, on all ranks at a time, give the
computing. Their prediction is printed beside the seconds of whole steps: medians, the slowest rank's.
"""

from __future__ import annotations

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

ROUNDS, SIZES = 7, (1 << 12, 1 << 16, 1 << 20)


def seconds_of(action: Callable[[], Any]) -> float:
    """The median over some rounds, of the slowest rank."""
    found = []
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    slowest = ampkit.tensor([statistics.median(found)])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())


def main(width: int) -> None:
    dist.init_process_group("sockets")
    group = world.group.WORLD
    ranks = group.size()
    samples, trace = [], []
    for size in SIZES:
        values = ampkit.zeros(size // 4)
        counts = tuple(0 if rank == group.rank() else size // ranks for rank in range(ranks))
        both = seconds_of(lambda values=values: dist.all_reduce(values, op=dist.ReduceOp.AVG))
        samples.append((Exchange("all_reduce", counts, counts), both / 2))
    found = cluster.fitted(samples, ranks)

    model = DistributedDataParallel(gpt(4, width), bucket_cap_mb=1)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    tokens = ampkit.randint(0, TOKENS, (16, 16))
    exchange = group.transport.exchange_others

    def recorded(call: Any, sent: Any, received: Any) -> None:
        trace.append(exchanged(group.rank(), call, sent, received))
        exchange(call, sent, received)

    def loss() -> Any:
        return ops.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    def whole() -> None:
        trace.clear()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    def alone() -> None:
        with model.no_sync():
            loss().backward()

    whole()
    forward = seconds_of(loss)
    both = seconds_of(alone)
    optimizer.zero_grad()
    loss().backward()
    update = seconds_of(optimizer.step)
    optimizer.zero_grad()
    group.transport.exchange_others = recorded
    measured = seconds_of(whole)
    said = [each for each in trace if "AVG" in each.says]
    predicted = cluster.step(found, said, forward, max(both - forward, 0.0), update)
    if group.rank() == 0:
        print(f"{ranks} ranks: {1e6 * found.latency:.0f} us a message, {found.bandwidth / 1e9:.2f} GB/s; "
              f"step measured {1e3 * measured:.1f} ms, predicted {1e3 * predicted.total:.1f} ms "
              f"({100 * (predicted.total / measured - 1):+.0f} %)")  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)

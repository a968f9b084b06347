"""A step on the ranks of this machine, predicted from one process and measured.

    ampkit launch --sockets -n 2 tests/scale/measure.py [WIDTH]

One process computes steps while the other ranks sleep; its buckets go to a group of itself. The machine's own figures
come from all ranks: what sums take, of time and of the processor, and how long layers take that all ranks compute at a
time, until the last one has them, beside what they take of the processor. They give a prediction, which is printed
beside the seconds of whole steps. All are measured in turn, so that other programs disturb them alike: medians.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
import ampkit
from ampkit import distributed as dist
from ampkit import ops, optim
from ampkit.distributed import world
from ampkit.distributed.reduction import SMALL
from ampkit.nn.parallel import DistributedDataParallel
from scale import cluster
from scale.model import CONTEXT, TOKENS, Block, gpt
from scale.trace import Exchange, exchanged

ROUNDS, SIZES = 15, (2 * SMALL, 1 << 16, 1 << 20)  # bytes, which two exchanges add up
SUMS, LAYERS = 8, 5  # in a round; layers take about as long as a step


class Seconds(NamedTuple):
    """Of time, and of the processor."""

    time: float
    processor: float


def seconds_of(action: Callable[[], Any]) -> Seconds:
    """Of an action; of the processor those of all threads."""
    start, processor = time.perf_counter(), time.process_time()
    action()
    return Seconds(time.perf_counter() - start, time.process_time() - processor)


class Training:
    """Steps of a GPT whose gradients a group averages."""

    def __init__(self, width: int, group: Any):
        self.model = DistributedDataParallel(gpt(4, width), process_group=group, bucket_cap_mb=1)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-3)
        self._tokens, self._targets = (ampkit.randint(0, TOKENS, (16, CONTEXT)) for _ in range(2))

    def loss(self) -> Any:
        return ops.cross_entropy(self.model(self._tokens).flatten(0, 1), self._targets.flatten())

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        self.loss().backward()
        self.update()


class Machine:
    """What all ranks of `group` compute and add up to know the machine."""

    def __init__(self, width: int, group: Any):
        self.group, self._block, self._input = group, Block(width), ampkit.randn(16, CONTEXT, width)
        self._buffers = {size: [ampkit.zeros(size // 4) for _ in range(SUMS)] for size in SIZES}

    def rest(self) -> None:
        """Sleep, as a busy system gives more time to who has slept."""
        time.sleep(0.02)
        dist.barrier()

    def layers(self) -> None:
        """Forward and backward of some layers."""
        for _ in range(LAYERS):
            self._block(self._input).sum().backward()

    def layers_of_all(self) -> None:
        """`layers`, until the last rank has them, as a step is."""
        self.layers()
        dist.barrier()

    def sums(self, size: int) -> Seconds:
        """Of a sum of `size` bytes, the mean of some; of the processor those of the thread that adds them up."""

        def now() -> Seconds:
            return Seconds(time.perf_counter(), time.thread_time())

        begin = self.group.run(now, in_background=True)
        for buffer in self._buffers[size]:
            dist.all_reduce(buffer, async_op=True)
        end = self.group.run(now, in_background=True).result()
        return Seconds(*((after - before) / SUMS for before, after in zip(begin.result(), end, strict=True)))


def main(width: int) -> None:
    dist.init_process_group("sockets")
    ampkit.set_num_threads(1)
    group = world.group.WORLD
    ranks, is_first = group.size(), group.rank() == 0
    itself = [dist.new_group([rank]) for rank in range(ranks)][group.rank()]
    together, alone, machine = Training(width, group), Training(width, itself), Machine(width, group)
    found: dict[str, list[Seconds]] = {}
    trace: list[Exchange] = []
    exchange = group.transport.exchange_others

    def recorded(call: Any, sent: Any, received: Any) -> None:
        trace.append(exchanged(group.rank(), call, sent, received))
        exchange(call, sent, received)

    def note(name: str, seconds: Seconds) -> None:
        found.setdefault(name, []).append(seconds)

    def one_process() -> None:
        losses: list[Any] = []
        note("forward", seconds_of(lambda: losses.append(alone.loss())))
        note("backward", seconds_of(lambda: losses.pop().backward()))
        note("update", seconds_of(alone.update))
        note("layers", seconds_of(machine.layers))

    group.transport.exchange_others = recorded
    for _ in range(2):
        together.step()
        alone.step()
        machine.layers()
    for _ in range(ROUNDS):
        dist.barrier()
        if is_first:
            one_process()
        dist.barrier()
        for size in SIZES:
            note(f"sum of {size} bytes", machine.sums(size))
        machine.rest()
        note("layers of all", seconds_of(machine.layers_of_all))
        machine.rest()
        trace.clear()
        note("step", seconds_of(together.step))
    if is_first:
        medians = {name: Seconds(*map(statistics.median, zip(*each, strict=True))) for name, each in found.items()}
        report(ranks, medians, list(trace))
    dist.destroy_process_group()


def report(ranks: int, seconds: dict[str, Seconds], trace: list[Exchange]) -> None:
    """Print the prediction beside the step. seconds: medians by name; trace: the exchanges of a step."""
    longer = seconds["layers of all"].time / seconds["layers"].processor
    sums = [(_half(size, ranks), seconds[f"sum of {size} bytes"]) for size in SIZES]
    machine = cluster.fitted([(half, each.time / 2) for half, each in sums], ranks)
    work = cluster.fitted([(half, longer * each.processor / 2) for half, each in sums], ranks)
    computing = [longer * seconds[name].processor for name in ("forward", "backward", "update")]
    gradients = [each for each in trace if "AVG" in each.says]
    has_core = ranks < len(os.sched_getaffinity(0))
    predicted = cluster.step(machine, gradients, *computing, None if has_core else work).total
    processor = (sum(computing) + sum(map(work.seconds, gradients))) / longer
    print(f"{ranks} ranks: computing {longer:.2f} times as long, {1e6 * machine.latency:.0f} us a message, "
          f"{machine.bandwidth / 1e9:.2f} GB/s; step measured {1e3 * seconds['step'].time:.0f} ms, predicted "
          f"{1e3 * predicted:.0f} ms ({100 * (predicted / seconds['step'].time - 1):+.0f} %); of the processor "
          f"{1e3 * seconds['step'].processor:.0f} ms, predicted {1e3 * processor:.0f} ms")  # fmt: skip


def _half(size: int, ranks: int) -> Exchange:
    """One of the two exchanges of a sum of `size` bytes."""
    counts = (0, *[size // ranks] * (ranks - 1))
    return Exchange("all_reduce", counts, counts)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)

"""The price of DeterministicDataParallel: its steps beside those of the whole batch at once, in one process.

    python tests/bench/deterministic.py [--work gpt resnet18] [--dtype float32] [--rounds 7] [--cpu-time] [--shards 2 4]

Both have the same model, batches and number of threads, and take turns step by step. Figures are medians, and the
median ratio of two neighbouring steps. With --shards deterministic steps of layers in so many shards stand beside those
of whole layers.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import peers

import ampkit
from ampkit import ops, optim
from ampkit.distributed import DeterministicDataParallel
from ampkit.distributed.tensor import parallelize_module


def steps(work: peers.Work, dtype: str, microbatches: int | None, shards: int = 1) -> Callable[[int], None]:
    """What takes a step: of the whole batch at once for None."""
    model = peers.build(work)
    if shards > 1:
        parallelize_module(model, shards=shards)
    optimizer, scaler = optim.AdamW(model.parameters(), lr=3e-4), ampkit.GradScaler(enabled=dtype == "float16")
    data = [(ampkit.tensor(x), ampkit.tensor(y)) for x, y in peers.batches(work)]
    parallel = None if microbatches is None else DeterministicDataParallel(model, microbatches)

    def region() -> AbstractContextManager[Any]:
        return nullcontext() if dtype == "float32" else ampkit.autocast(dtype=dtype)

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        with region():
            return ops.cross_entropy(model(x).flatten(0, -2), y.flatten())

    def step(number: int) -> None:
        batch = data[number % len(data)]
        if parallel is None:
            scaler.scale(loss_of(model, *batch)).backward()
        else:
            parallel.forward_backward(loss_of, [batch], scaler)
        scaler.step(optimizer)
        if scaler.is_enabled():
            scaler.update()
        optimizer.zero_grad()

    return step


def measured(both: Sequence[Callable[[int], None]], rounds: int, clock: Callable[[], float]) -> tuple[float, ...]:
    """Median seconds of a step of either, and the median ratio."""
    times: list[list[float]] = []
    for number in range(rounds + 2):
        row = []
        for step in both:
            start = clock()
            step(number)
            row.append(clock() - start)
        if number >= 2:
            times.append(row)
    ordinary, deterministic = (statistics.median(column) for column in zip(*times, strict=True))
    return ordinary, deterministic, statistics.median(b / a for a, b in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", nargs="+", default=["gpt", "resnet18"], choices=peers.WORK)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shards", type=int, nargs="+", help="beside whole layers")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of all threads, for busy machines")
    args = parser.parse_args()
    ampkit.set_num_threads(args.threads)
    columns = "whole layers, ms | in shards, ms" if args.shards else "whole batch, ms | deterministic, ms"
    print(f"| | {columns} | ratio |", "|---|---|---|---|", sep="\n")
    clock = time.process_time if args.cpu_time else time.perf_counter
    for name, dtype, shards in itertools.product(args.work, args.dtype, args.shards or [1]):
        work = peers.WORK[name]
        if args.shards and name == "gpt":
            work = work._replace(options={**work.options, "n_head": 8})  # 6 heads are not divided by 4
        first = steps(work, dtype, args.microbatches if args.shards else None)
        second = steps(work, dtype, args.microbatches, shards)
        *seconds, ratio = measured([first, second], args.rounds, clock)
        figures = " | ".join(f"{each * 1e3:.0f}" for each in seconds)
        title = f"{name}, {dtype}" + (f", {shards} shards" if args.shards else "")
        print(f"| {title} | {figures} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

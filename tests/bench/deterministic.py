"""The price of DeterministicDataParallel: its steps beside those of the whole batch at once, in one process.

    python tests/bench/deterministic.py [--work gpt resnet18] [--dtype float32] [--rounds 7] [--cpu-time]

Both have the same model, batches and number of threads, and take turns step by step. Figures are medians, and the
median ratio of two neighbouring steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import peers

import ampkit
from ampkit import ops, optim
from ampkit.distributed import DeterministicDataParallel


def steps(work: peers.Work, dtype: str, microbatches: int | None) -> Callable[[int], None]:
    """What takes a step: of the whole batch at once for None."""
    model = peers.build(work)
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


def measured(name: str, dtype: str, microbatches: int, rounds: int, clock: Callable[[], float]) -> tuple[float, ...]:
    """Median seconds of a step of either, and the median ratio."""
    both = [steps(peers.WORK[name], dtype, each) for each in (None, microbatches)]
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
    parser.add_argument("--cpu-time", action="store_true", help="seconds of all threads, for busy machines")
    args = parser.parse_args()
    ampkit.set_num_threads(args.threads)
    print("| | whole batch, ms | deterministic, ms | ratio |", "|---|---|---|---|", sep="\n")
    clock = time.process_time if args.cpu_time else time.perf_counter
    for name in args.work:
        for dtype in args.dtype:
            *seconds, ratio = measured(name, dtype, args.microbatches, args.rounds, clock)
            figures = " | ".join(f"{each * 1e3:.0f}" for each in seconds)
            print(f"| {name}, {dtype} | {figures} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

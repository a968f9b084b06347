"""The time of a GPT's training step by each recipe of formats below 16 bits, beside bfloat16, on a CPU.

    python tests/bench/recipes.py [--layers 6] [--width 384] [--tokens 2048] [--rounds 15] [--only mxfp8 ...]

All of them train in one process, a step of each in turn, so that whatever else the machine does delays them alike. On a
machine that others use, `--cpu-time` with OMP_NUM_THREADS=1 counts the seconds of the process alone.
Printed are the medians of the steps over bfloat16's, the quartiles of that ratio within the rounds, and the bytes that
a forward saves.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ampkit
from ampkit import models, ops, optim
from ampkit.backends.cpu.caching_allocator import allocator
from ampkit.core.policy import Policy
from ampkit.core.policy.recipe import FAMILIES

BLOCK, VOCABULARY = 256, 256


def policies() -> dict[str, Policy]:
    """Every recipe by its name, and bfloat16."""
    found = {name: Policy(word, recipe=name) for word, names in FAMILIES.items() for name in names}
    return {"bfloat16": Policy("bfloat16"), **found}


def training(policy: Policy, layers: int, width: int, tokens: int) -> Callable[[], int]:
    """A function that runs a step and returns the bytes that its forward left allocated."""
    ampkit.manual_seed(0)
    model = models.GPT(VOCABULARY, BLOCK, layers, width // 64, width)
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    rows = np.random.default_rng(0).integers(0, VOCABULARY, (max(1, tokens // BLOCK), BLOCK + 1))
    x, y = ampkit.tensor(rows[:, :-1]), ampkit.tensor(rows[:, 1:])

    def step() -> int:
        before = allocator().used
        with ampkit.autocast("cpu", policy=policy):
            loss = ops.cross_entropy(model(x).flatten(0, -2), y.flatten())
        saved = allocator().used - before
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return saved

    return step


def measure(
    steps: dict[str, Callable[[], int]], rounds: int, clock: Callable[[], float]
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of each step in each round, and the bytes that each saved."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    saved: dict[str, int] = {}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            start = clock()
            saved[name] = step()
            if turn > 1:
                seconds[name].append(clock() - start)
        gc.collect()
    return seconds, saved


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 6), ("width", 384), ("tokens", 2048), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cpu-time", action="store_true")
    given = parser.parse_args()
    chosen = {
        name: each
        for name, each in policies().items()
        if name == "bfloat16" or given.only in ([], [name]) or name in given.only
    }
    steps = {name: training(each, given.layers, given.width, given.tokens) for name, each in chosen.items()}
    seconds, saved = measure(steps, given.rounds, time.process_time if given.cpu_time else time.perf_counter)
    base = seconds["bfloat16"]
    print(f"{'':20}{'ms':>8}{'ratio':>8}{'quartiles':>14}{'saved MB':>10}")
    for name, times in seconds.items():
        low, _, high = statistics.quantiles([a / b for a, b in zip(times, base, strict=True)])
        median = statistics.median(times)
        ratio = median / statistics.median(base)
        print(f"{name:20}{median * 1e3:8.0f}{ratio:8.2f}{low:7.2f}{high:7.2f}{saved[name] / 1e6:10.0f}")


if __name__ == "__main__":
    main()

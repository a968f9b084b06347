"""`linear_cross_entropy` beside a linear layer and `cross_entropy`, forward and backward on the CPU: time and memory.

    python tests/bench/fused_losses.py [--rows 2048] [--classes 50257] [--width 384] [--threads 1] [--rounds 7]

Both run in turns in one process. Times are medians of seconds of the CPU, of all threads, and of the clock on the wall;
ratios are medians of the turns side by side. Memory is the most that arrays held beside the weights and the input.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import ampkit
from ampkit import nn, ops

NAMES = ("logits in memory", "linear_cross_entropy")


def losses(rows: int, classes: int, width: int) -> tuple[Any, Any, list[Callable[[], Any]]]:
    """The input, the weights, and the functions that compute the loss in each of the two ways."""
    random = np.random.default_rng(0)
    x = ampkit.tensor(random.standard_normal((rows, width)).astype(np.float32), requires_grad=True)
    weight = nn.Parameter(ampkit.tensor((0.02 * random.standard_normal((classes, width))).astype(np.float32)))
    target = ampkit.tensor(random.integers(0, classes, rows))
    apart = lambda: ops.cross_entropy(ops.linear(x, weight), target)  # noqa: E731
    return x, weight, [apart, lambda: ops.linear_cross_entropy(x, weight, target)]


def measured(dtype: str, x: Any, weight: Any, loss: Callable[[], Any]) -> tuple[float, float, int]:
    """Seconds of the CPU and of the clock, and the most bytes held, of a forward and a backward."""
    x.grad = weight.grad = None
    held = ampkit.cpu.memory_allocated()
    ampkit.cpu.reset_peak_memory_stats()
    begin = time.process_time(), time.perf_counter()
    with ampkit.autocast(dtype=ampkit.bfloat16, enabled=dtype == "bfloat16"):
        found = loss()
    found.backward()
    seconds = time.process_time() - begin[0], time.perf_counter() - begin[1]
    return *seconds, ampkit.cpu.max_memory_allocated() - held


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default in (("rows", 2048), ("classes", 50257), ("width", 384), ("threads", 1), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    ampkit.set_num_threads(args.threads)
    print(f"{'':10}{'':22}{'CPU, s':>8}{'ratio':>7}{'wall, s':>9}{'ratio':>7}{'held, MB':>10}")
    for dtype in ("float32", "bfloat16"):
        x, weight, ways = losses(args.rows, args.classes, args.width)
        for way in ways:  # which packs the weights
            measured(dtype, x, weight, way)
        rounds = [[measured(dtype, x, weight, way) for way in ways] for _ in range(args.rounds)]
        for i, name in enumerate(NAMES):
            line = f"{dtype:10}{name:22}"
            for at, width in ((0, 8), (1, 9)):
                line += f"{median(turn[i][at] for turn in rounds):{width}.3f}"
                line += f"{median(turn[i][at] / turn[0][at] for turn in rounds):7.2f}"
            print(f"{line}{max(turn[i][2] for turn in rounds) / 1e6:10.0f}", flush=True)


if __name__ == "__main__":
    main()

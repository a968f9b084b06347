"""Share of a training step spent outside of kernels and casts: in calls, cast plans, the tape, the optimizer.

    python tests/bench/overhead.py [--work nano] [--dtype float32] [--steps 40]

Every reference, kernel and cast is timed; the rest of a step is overhead, including the timing's own. Prints medians.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import peers

import ampkit
from ampkit.backends import cpu
from ampkit.core.dispatch import Kernel


class Clock:
    """Seconds spent inside the wrapped functions; nested calls count once."""

    def __init__(self) -> None:
        self.seconds, self.running = 0.0, False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            if self.running:
                return function(*arguments, **options)
            self.running, start = True, time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - start
                self.running = False

        return timed


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--work", choices=peers.WORK, default="nano")
    options.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    options.add_argument("--steps", type=int, default=40)
    given = options.parse_args()
    ampkit.set_num_threads(ampkit.get_num_threads())
    step, clock = peers.our_step(peers.WORK[given.work], given.dtype, []), Clock()
    for number in range(3):
        step(number)
    for kernel in [found for found in gc.get_objects() if isinstance(found, Kernel)]:
        kernel.run = clock.wrap(kernel.run)
    cpu.cast = clock.wrap(cpu.cast)  # type: ignore[method-assign]  # to count its time
    rows = []
    for number in range(given.steps):
        clock.seconds, start = 0.0, time.perf_counter()
        step(number)
        whole = time.perf_counter() - start
        rows.append((whole, whole - clock.seconds))
    whole, outside = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"{given.work}, {given.dtype}: {1e3 * whole:.1f} ms a step, {1e3 * outside:.1f} ms of it outside of kernels")
    print(f"share: {statistics.median(o / w for w, o in rows):.1%}")


if __name__ == "__main__":
    main()

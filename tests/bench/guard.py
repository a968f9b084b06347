"""What it costs to skip steps that are not finite: steps with and without the check, in turns, in one process.

    python -m tests.bench.guard

Prints the median process time of a step of text_gpt and digits_cnn, in float32 and bfloat16, on one thread.
"""

from __future__ import annotations

import statistics
import time

from ampkit import config
from ampkit.run.loop import fit

RECIPES = {"recipes/text_gpt.toml": 60, "recipes/digits_cnn.toml": 400}  # and steps of each
WARMUP = 8
LENGTH = ["train.threads=1", "train.log_every=100000", "train.eval_every=", "train.epochs=", "train.steps=100000"]


def main() -> None:
    print(f"{'recipe':28}{'dtype':10}{'with':>10}{'without':>10}{'ratio':>8}")
    for recipe, steps in RECIPES.items():
        for dtype in ("float32", "bfloat16"):
            on, off = medians(recipe, dtype, steps)
            print(f"{recipe:28}{dtype:10}{on * 1e3:7.2f} ms{off * 1e3:7.2f} ms{on / off:8.3f}")


def medians(recipe: str, dtype: str, steps: int) -> tuple[float, float]:
    """Seconds of a step with the check and without."""
    run = fit(config.load(recipe, [f"amp.dtype={dtype}", *LENGTH]))
    guard, times = run._guard, ([], [])
    for number in range(steps):
        run._guard = guard if number % 2 else None
        start = time.process_time()
        run.advance()
        times[1 - number % 2].append(time.process_time() - start)
    on, off = (statistics.median(found[WARMUP // 2 :]) for found in times)
    return on, off


if __name__ == "__main__":
    main()

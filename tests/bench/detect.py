"""What `debug.detect_nonfinite` costs, and a step that `debug.Ranges` samples: steps of recipes in turns.

    python -m tests.bench.detect [--rounds 40]

Prints the CPU time of such a step, on one thread, by that of the plain step before it: medians over the rounds. "all
on" is both at once; what sampling every 20th step adds to a run is a twentieth of what one sampled step does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import nullcontext

from ampkit import config, debug
from ampkit.run.loop import Run, fit

from .guard import LENGTH
from .processes import ROOT

RECIPES = ("text_gpt", "digits_cnn")
WAYS = ((False, False), (True, False), (False, True), (True, True))  # detecting, sampled
WARMUP = 3


def seconds(run: Run, ranges: debug.Ranges, detecting: bool, sampled: bool) -> float:
    """The CPU time of a step, with the row of JSON that a sampled one writes."""
    run.ranges = ranges if sampled else None
    began = time.process_time()
    with debug.detect_nonfinite() if detecting else nullcontext():
        run.advance()
    while ranges.samples:
        json.dumps(ranges.samples.pop().row())
    return time.process_time() - began


def ratios(recipe: str, dtype: str, rounds: int) -> list[float]:
    """The median cost of each of WAYS by that of the first."""
    options = [*LENGTH, f"amp.dtype={dtype}", "debug.ranges_every=1"]
    run = fit(config.load(str(ROOT / "recipes" / f"{recipe}.toml"), options))
    ranges = run.ranges
    assert ranges is not None
    times = [[seconds(run, ranges, *way) for way in WAYS] for _ in range(WARMUP + rounds)][WARMUP:]
    return [statistics.median(each[way] / each[0] for each in times) for way in range(1, len(WAYS))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    print("| recipe | dtype | detect_nonfinite | sampled | every 20th | all on |\n|---|---|---|---|---|---|")
    for recipe in RECIPES:
        for dtype in ("float32", "bfloat16", "float16"):
            detecting, sampled, both = ratios(recipe, dtype, rounds)
            shares = f"{detecting:.2f} x | {sampled:.2f} x | {(sampled - 1) / 20:+.1%} | {both:.2f} x"
            print(f"| {recipe} | {dtype} | {shares} |", flush=True)


if __name__ == "__main__":
    main()

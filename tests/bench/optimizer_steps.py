"""How many steps AdamW, Muon and SOAP take to the same loss.

    python -m tests.bench.optimizer_steps [--steps 240] [--every 20] [--only muon soap] [--set KEY=VALUE ...]

Trains recipes/text_gpt.toml with each optimizer at four learning rates, all with the same seed, batches, schedule and
weight decay, and evaluates every few steps. Of each optimizer the learning rate with the lowest loss at the end counts.
Two thresholds are AdamW's: the loss at which it has 90 % of its fall from the first evaluation behind it, and its last
one. Steps are counted, not seconds: a step of Muon takes 5 iterations of three products of each matrix besides.
"""

from __future__ import annotations

import argparse
import math
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ampkit.base.errors import NonFiniteError
from ampkit.config import load
from ampkit.run.loop import EvalRow, fit

RECIPE = Path(__file__).parents[2] / "recipes" / "text_gpt.toml"
RATES = {
    "adamw": ["1e-3", "2e-3", "4e-3", "8e-3"],
    "muon": ["2e-3", "4e-3", "8e-3", "1.6e-2"],
    "soap": ["1e-3", "2e-3", "4e-3", "8e-3"],
}
KEYS = {"muon": ["optimizer.adjust_lr_fn=match_rms_adamw"], "soap": ["optimizer.betas=[0.95, 0.95]"]}
SHARE = 0.9


class Curve(NamedTuple):
    """The evaluations of a training: steps and losses."""

    steps: list[int]
    losses: list[float]

    def reached(self, loss: float) -> float:
        """The first step at which the loss was at most this, interpolated; infinity if it never was."""
        pairs = list(zip(self.steps, self.losses, strict=True))
        for (before, high), (after, low) in pairwise(pairs):
            if low <= loss:
                return before + (after - before) * min(1.0, (high - loss) / (high - low))
        return math.inf


def curve(name: str, rate: str, steps: int, every: int, more: list[str]) -> Curve:
    """Train with one optimizer at one learning rate."""
    lengths = [f"train.steps={steps}", f"train.eval_every={every}", "train.eval_batches=8"]
    recipe = load(RECIPE, [f"optimizer.name={name}", f"optimizer.lr={rate}", *KEYS.get(name, []), *lengths, *more])
    found = Curve([], [])
    try:
        for row in fit(recipe):
            if isinstance(row, EvalRow):
                found.steps.append(row.step)
                found.losses.append(row.val_loss)
    except NonFiniteError:
        found.losses.append(math.inf)
        found.steps.append(steps)
    return found


def main() -> None:
    """Train, and print a line per learning rate and one per optimizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=["muon"], choices=list(RATES))
    parser.add_argument("--set", nargs="*", default=[])
    args = parser.parse_args()
    best: dict[str, tuple[str, Curve]] = {}
    for name in dict.fromkeys(["adamw", *args.only]):
        for rate in RATES[name]:
            found = curve(name, rate, args.steps, args.every, args.set)
            print(f"{name:6} lr {rate}: loss {found.losses[-1]:.4f} after {found.steps[-1]} steps", flush=True)
            if name not in best or found.losses[-1] < best[name][1].losses[-1]:
                best[name] = rate, found
    first, last = best["adamw"][1].losses[0], best["adamw"][1].losses[-1]
    most = first - SHARE * (first - last)
    print(f"\nsteps to a loss of {most:.3f}, 90 % of AdamW's fall from {first:.3f}, and to {last:.3f}, AdamW's last")
    for name, (rate, found) in best.items():
        print(f"{name:6} lr {rate}: {found.reached(most):.0f} and {found.reached(last):.0f}")


if __name__ == "__main__":
    main()

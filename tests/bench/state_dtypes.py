"""What moments in fewer bits cost in loss, and save in memory.

    python -m tests.bench.state_dtypes [--steps 240] [--optimizer adamw] [--set KEY=VALUE ...]

Trains recipes/text_gpt.toml with each `optimizer.state_dtype`, all with the same seed, batches and schedule, and prints
the loss at the end, beside that of float32 moments, the bytes that moments take, and their bytes per weight.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from ampkit.config import load
from ampkit.optim.flat.moments import STATE_DTYPES
from ampkit.run.loop import EvalRow, fit

RECIPE = Path(__file__).parents[2] / "recipes" / "text_gpt.toml"


class Run(NamedTuple):
    """The loss at the end, the bytes of moments, and the number of weights."""

    loss: float
    nbytes: int
    weights: int


def run(state_dtype: str, steps: int, more: list[str]) -> Run:
    """Train with moments in `state_dtype`."""
    keys = [f"train.steps={steps}", f"train.eval_every={steps}", "train.eval_batches=32"]
    training = fit(load(RECIPE, [f"optimizer.state_dtype={state_dtype}", *keys, *more]))
    loss = [row.val_loss for row in training if isinstance(row, EvalRow)][-1]
    arenas = [arena for group in training.optimizer.param_groups for arena in group.arenas]
    nbytes = sum(flat.nbytes for arena in arenas for flat in arena.moment_arrays())
    return Run(loss, nbytes, sum(arena.size for arena in arenas))


def main() -> None:
    """Train, and print a line per dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--set", nargs="*", default=[])
    args = parser.parse_args()
    wide: Run | None = None
    for state_dtype in STATE_DTYPES:
        found = run(state_dtype, args.steps, [f"optimizer.name={args.optimizer}", *args.set])
        wide = wide or found
        change, each = found.loss / wide.loss - 1, found.nbytes / found.weights
        sizes = f"{found.nbytes:,} bytes of moments, {each:.2f} per weight"
        print(f"{state_dtype:9} loss {found.loss:.4f} ({change:+.2%}); {sizes}", flush=True)


if __name__ == "__main__":
    main()

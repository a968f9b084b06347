"""Validation losses of a GPT trained by each recipe below 16 bits, relative to bfloat16's.

    python -m tests.bench.recipe_losses [KEY=VALUE ...] [--model text_gpt | gpt_10m] [--steps N] [--recipes NAME ...]
        [--seeds N ...]

Runs of one seed have the same batches and schedule; only amp.dtype and amp.recipe differ. KEY=VALUE: of the recipe
file; amp.output_layer=recipe quantizes the output layer, too. With several seeds, the last lines have the mean
difference from bfloat16 and its standard error.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from ampkit import config
from ampkit.core.policy.recipe import FAMILIES, RECIPES
from ampkit.run.loop import EvalRow, fit

FILE = Path(__file__).parents[2] / "recipes" / "text_gpt.toml"
MODELS = {
    "text_gpt": [],
    "gpt_10m": ["model.n_layer=6", "model.n_embd=384", "model.n_head=6", "optimizer.lr=1e-3"],
}
LIMITS = {"nvfp4": 0.015, "int8": 0.01}  # of the relative difference from bfloat16; 0.005 for the others


def validation_loss(name: str, model: str, steps: int, more: Sequence[str]) -> tuple[float, float]:
    """The validation loss after the last step, and the seconds of a step."""
    family = next((word for word, names in FAMILIES.items() if name in names), None)
    amp = [f"amp.dtype={family or name}", *([] if family is None else [f"amp.recipe={name}"])]
    length = [f"train.steps={steps}", f"train.eval_every={steps}", f"schedule.warmup={min(50, steps // 10)}"]
    run, start = fit(config.load(FILE, [*MODELS[model], *length, *amp, *more])), time.perf_counter()
    last = [row for row in run if isinstance(row, EvalRow)][-1]
    return float(last.val_loss), (time.perf_counter() - start) / steps


def relative(options: argparse.Namespace, seed: int) -> dict[str, float]:
    """By recipe, the validation loss over bfloat16's from the same seed, less 1; prints a line for each."""
    more = [*options.overrides, f"train.seed={seed}"]
    base, seconds = validation_loss("bfloat16", options.model, options.steps, more)
    print(f"seed {seed}, {'bfloat16':20} {base:.4f} nats  {seconds:.3f} s a step", flush=True)
    found = {}
    for name in options.recipes:
        loss, seconds = validation_loss(name, options.model, options.steps, more)
        found[name] = loss / base - 1
        print(f"seed {seed}, {name:20} {loss:.4f} nats  {seconds:.3f} s a step  {found[name]:+.2%}", flush=True)
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Train, and print a line for each run and each recipe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="text_gpt")
    parser.add_argument("--steps", type=int, default=750)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args(given)
    by_seed = [relative(options, seed) for seed in options.seeds]
    for name in options.recipes:
        values = [found[name] for found in by_seed]
        mean, limit = statistics.fmean(values), LIMITS.get(name, 0.005)
        error = f" +- {statistics.stdev(values) / len(values) ** 0.5:.2%}" if len(values) > 1 else ""
        print(f"{name:20} {mean:+.2%}{error}, {'within' if mean <= limit else 'above'} {limit:.1%}")


if __name__ == "__main__":
    main()

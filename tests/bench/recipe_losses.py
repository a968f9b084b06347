"""Validation losses of a GPT trained by each recipe below 16 bits, relative to bfloat16's.

    python -m tests.bench.recipe_losses [KEY=VALUE ...] [--model text_gpt | gpt_10m] [--steps N] [--recipes NAME ...]

Every run has the same seed, batches and schedule; only amp.dtype and amp.recipe differ. KEY=VALUE: of the recipe file.
"""

from __future__ import annotations

import argparse
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


def main(given: Sequence[str] | None = None) -> None:
    """Train, and print a line for each recipe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="text_gpt")
    parser.add_argument("--steps", type=int, default=750)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="NAME")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args(given)
    more = options.overrides
    base, seconds = validation_loss("bfloat16", options.model, options.steps, more)
    print(f"{'bfloat16':20} {base:.4f} nats  {seconds:.3f} s a step", flush=True)
    for name in options.recipes:
        loss, seconds = validation_loss(name, options.model, options.steps, more)
        limit, relative = LIMITS.get(name, 0.005), loss / base - 1
        verdict = "within" if relative <= limit else "above"
        print(f"{name:20} {loss:.4f} nats  {seconds:.3f} s a step  {relative:+.2%}, {verdict} {limit:.1%}", flush=True)


if __name__ == "__main__":
    main()

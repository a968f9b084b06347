"""How much of what each format below 16 bits loses is lost in the output layer, in the course of a training.

    python -m tests.bench.output_layers [KEY=VALUE ...] [--at 20 60 200] [--batches 2] [--formats NAME ...]

The GPT of recipes/text_gpt.toml trains in bfloat16. After some steps, its gradients on the next batches are compared
with those of each recipe in all linear layers, in all but the output layer, and in the output layer alone: the errors
are those of `ampkit lab`, the relative error of the loss that training is predicted to have, and the relative L2
norm of what is wrong in the gradient.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from ampkit import Policy, config
from ampkit.core.policy.recipe import RECIPES, QuantizationRecipe
from ampkit.debug.policy_search.formats import FORMATS
from ampkit.debug.policy_search.sensitivity import Evaluation, Sensitivity, sensitivities
from ampkit.optim.matrix.hidden import output_layer
from ampkit.run.search.turns import Training, batches_at

FILE = Path(__file__).parents[2] / "recipes" / "text_gpt.toml"
PARTS = ("all layers", "all but the output layer", "the output layer alone")
_NONE = QuantizationRecipe("none", None, None, None)  # quantizes nothing, and runs the same kernels as a recipe does


def policies(name: str, output: str) -> list[Policy]:
    """The policies of PARTS for a recipe; output: the path of the output layer."""
    return [
        Policy("bfloat16", recipe=name),
        Policy("bfloat16", recipe=name, modules={output: _NONE}),
        Policy("bfloat16", recipe=_NONE, modules={output: name}),
    ]


def measured(
    recipe: config.Recipe, steps: Sequence[int], formats: Sequence[str], batches: int
) -> Iterator[tuple[int, float, dict[str, list[Sensitivity]]]]:
    """After each of `steps`: the step, the training loss, and by format the sensitivities of PARTS."""
    training, base = Training(recipe, Policy("bfloat16")), Policy("bfloat16", recipe=_NONE)
    model = training.run.model
    output = output_layer(model)
    assert output is not None
    for done in range(1, max(steps) + 1):
        training.advance()
        if done in steps:
            given, loss = batches_at(recipe, done, batches)
            pairs = [(base, policy) for name in formats for policy in policies(name, output)]
            found = sensitivities(Evaluation(model, loss), given, pairs, lambda count: None)
            rows = {name: found[len(PARTS) * at : len(PARTS) * (at + 1)] for at, name in enumerate(formats)}
            yield done, training.losses[-1], rows


def main(given: Sequence[str] | None = None) -> None:
    """Train, measure, and print a table for each of the steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--at", nargs="+", type=int, default=[20, 60, 200], metavar="STEP")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--formats", nargs="+", choices=RECIPES, default=list(FORMATS), metavar="NAME")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args(given)
    recipe = config.load(FILE, ["train.log_every=1", *options.overrides])
    for step, loss, rows in measured(recipe, options.at, options.formats, options.batches):
        print(f"step {step}, training loss {loss:.3f}: predicted error of the loss, error of the gradient")
        print(f"  {'':10}" + "".join(f"{part:>28}" for part in PARTS))
        for name, found in rows.items():
            cells = "".join(f"{f'{each.error:.3%}, {each.gradient:.2%}':>28}" for each in found)
            print(f"  {name:10}{cells}", flush=True)


if __name__ == "__main__":
    main()

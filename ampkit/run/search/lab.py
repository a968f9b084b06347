"""The precision laboratory for a recipe: what its layers lose in each format, and trainings that verify it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...base.errors import ConfigError
from ...config import Recipe
from ...core.policy import Policy
from ...core.policy.recipe import recipe as named
from ...debug.policy_search.formats import FORMATS, Laboratory, lab
from ...debug.policy_search.tuning import Progress, as_toml, percent
from .turns import AGAIN, Show, Trained, Training, batches_at, shortened, train_in_turns

LAB = "lab.json"  # in a run directory: LabRecipe.as_json, which its report shows


@dataclass(frozen=True)
class LabRecipe:
    """What `lab_recipe` found.

    found: what the layers lose. policy: the one with the least work within the budget. trained: the 16-bit policy,
    the same again from weights that differ by 1.6 %, each format, and `policy` under the name "mixed",
    after `steps` steps each; empty if nothing was trained.
    """

    found: Laboratory
    policy: Policy
    budget: float
    trained: tuple[Trained, ...]
    steps: int

    def toml(self) -> str:
        """The [amp] section of a recipe that runs the policy."""
        return as_toml(self.policy)

    @property
    def note(self) -> str:
        """What the training made of `policy`, in one line; empty where nothing was trained, or in 16 bits again."""
        if not self.trained or self.policy in (each.timed.policy for each in self.trained[:2]):
            return ""
        error, chance = self.trained[-1].timed.error, self.trained[1].timed.error
        if not math.isfinite(error):
            return "its training failed: `ampkit tune --formats` takes a policy whose training ends within the budget"
        found = f"trained, its loss came to {percent(error)} from that of {self.trained[0].timed.name}"
        found += f"; chance alone makes {percent(chance)}"
        if error <= self.budget + chance:
            return found
        return f"{found}: more than the budget, `ampkit tune --formats` takes a policy whose training stays within it"

    def as_json(self) -> dict[str, Any]:
        """All numbers as `lab.json` in a run directory holds them; null for what is not finite."""
        layers = [
            {"layer": r.layer, "recipe": r.recipe, "error": _number(r.sensitivity.error),
             "loss_error": _number(r.sensitivity.loss), "gradient_error": _number(r.sensitivity.gradient),
             "products": {name: _product(each) for name, each in r.products.items()}}
            for r in self.found.layers
        ]  # fmt: skip
        formats = [
            {"recipe": each.recipe, "error": _number(each.sensitivity.error), "kept": self.found.kept(each.recipe),
             "inner": None if each.inner is None else _number(each.inner.error),
             "products": {name: _number(found.error) for name, found in each.products.items()}}
            for each in self.found.formats
        ]  # fmt: skip
        trained = [
            {"name": t.timed.name, "loss": _number(t.loss), "val_loss": _number(t.val_loss),
             "seconds": _number(t.timed.seconds), "failure": t.failure}
            for t in self.trained
        ]  # fmt: skip
        return {
            "dtype": self.found.dtype, "output": self.found.output, "layers": layers, "formats": formats,
            "policy": repr(self.policy), "note": self.note, "budget": self.budget, "trained": trained,
            "steps": self.steps, "kept": self.found.kept(),
            "cards": [dict(zip(("name", "figures", "source"), card, strict=True)) for card in self.found.cards()],
        }  # fmt: skip


def lab_recipe(
    recipe: Recipe, formats: Sequence[str] = FORMATS, budget: float = 0.01, batches: int = 4, steps: int | None = None,
    trains: bool = True, show: Show = lambda progress: None,
) -> LabRecipe:  # fmt: skip
    """Which layers of the recipe's model survive which format, and what the loss becomes.

    The model trains in 16 bits for half of `steps`, and `debug.lab` measures it on the next `batches` batches. Then, if
    `trains`, the 16-bit policy, each format and the policy within `budget` train for `steps` steps from the same seed,
    in turns, and so does the 16-bit policy again from weights that differ by 1.6 %, up or down: what its loss
    differs by is chance. steps: by default the recipe's train.bench_steps, or as many as it trains, at most 300;
    the schedule is scaled to that length. The 16-bit dtype is the recipe's, bfloat16 if it trains in float32. show:
    called as it proceeds. Raises what `fit` and `debug.lab` raise, and ConfigError for parameters in 16 bits.
    """
    recipe, base = start(recipe, formats, steps)
    model, count = half_trained(recipe, base, show)
    given, loss = batches_at(recipe, count // 2, batches)
    found = lab(model, given, loss, base.dtype.name, formats=formats, show=show)
    policy = found.policy(budget)
    trained: list[Trained] = []
    if trains:
        candidates = [(base.dtype.name, base), (AGAIN, base)]
        candidates += [(name, Policy(base.dtype, recipe=name)) for name in found.ranking()]
        trained = train_in_turns(recipe, [*candidates, ("mixed", policy)], show)
    return LabRecipe(found, policy, budget, tuple(trained), count)


def start(recipe: Recipe, formats: Sequence[str], steps: int | None) -> tuple[Recipe, Policy]:
    """The recipe with `steps` steps, and the 16-bit policy that formats are compared with.

    Raises ConfigError for parameters in 16 bits and for an unknown format.
    """
    if recipe.amp.parameters == "low":
        raise ConfigError("amp.parameters", "float32, so that the formats alone differ", "low")
    for name in formats:
        named(name)
    return shortened(recipe, steps), Policy(_dtype(recipe))


def half_trained(recipe: Recipe, base: Policy, show: Show) -> tuple[Any, int]:
    """The model after half of the steps under `base`, and the number of all steps."""
    training = Training(recipe, base)
    count = training.run.steps
    for done in range(count // 2):
        training.advance()
        show(Progress(f"training in {base.dtype.name}", done + 1, count // 2))
    return training.run.model, count


def _dtype(recipe: Recipe) -> str:
    return recipe.amp.dtype if recipe.amp.dtype in ("float16", "bfloat16") else "bfloat16"


def _product(each: Any) -> dict[str, Any]:
    return {"error": _number(each.error), "flushed": each.flushed, "saturated": each.saturated}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no other numbers

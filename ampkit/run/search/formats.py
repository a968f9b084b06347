"""The search for a policy below 16 bits for a recipe: its model measured in the middle of a training, and trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...config import Recipe
from ...core.policy import Policy
from ...debug.policy_search.format_tuning import FormatTuning, tune_formats
from ...debug.policy_search.formats import FORMATS
from ...debug.policy_search.tuning import as_toml, percent
from .lab import half_trained, start
from .turns import AGAIN, Show, Trained, batches_at, train_in_turns

_RETRIES = 2


@dataclass(frozen=True)
class TunedFormats:
    """What `tune_formats_recipe` found.

    policy: to take, the 16-bit policy where no format stays within the budget; note: one line that says why. tuning:
    what the search found on batches. trained: the 16-bit policy and others, after `steps` steps each.
    """

    policy: Policy
    note: str
    tuning: FormatTuning
    trained: tuple[Trained, ...]
    steps: int

    def toml(self) -> str:
        """The [amp] section of a recipe that runs the policy."""
        return as_toml(self.policy)


def tune_formats_recipe(
    recipe: Recipe, formats: Sequence[str] = FORMATS, error: float | None = None, memory: float | None = None,
    batches: int = 4, steps: int | None = None, show: Show = lambda progress: None,
) -> TunedFormats:  # fmt: skip
    """Which layer of the recipe's model to run in which format, within a budget of the loss or of memory.

    The model trains in 16 bits for half of `steps`, and `debug.tune_formats` searches on the next `batches` batches.
    Then the 16-bit policy and the one found train for `steps` steps from the same seed, in turns, and the 16-bit policy
    again from weights that differ by 1.6 %, up or down, whose difference is chance. Where the mean training loss
    differs by more than `error` and chance, a quarter of the error is searched with, twice at most. error: by default
    0.01, without `memory`. steps: as `lab_recipe` has them. Raises what `fit` and `debug.tune_formats` raise, and
    ConfigError for parameters in 16 bits.
    """
    recipe, base = start(recipe, formats, steps)
    model, count = half_trained(recipe, base, show)
    given, loss = batches_at(recipe, count // 2, batches)
    tuning = tune_formats(model, given, loss, base.dtype.name, formats=formats, error=error, memory=memory, show=show)
    names: list[tuple[str, Policy | None]] = [(base.dtype.name, base), (AGAIN, base)]
    results = train_in_turns(recipe, [*names, *_named(base, "found", tuning.policy)], show)
    chance = results[1].timed.error
    limit = math.inf if tuning.error is None else tuning.error + chance
    for attempt in range(1, _RETRIES + 1):
        if results[-1].timed.error <= limit:
            break
        tried = [each.timed.policy for each in results]
        for named in _named(base, "tightened", tuning.tightened((tuning.error or 0.0) / 4**attempt)):
            if named[1] not in tried:
                results += train_in_turns(recipe, [named], show, results[0])
    others = results[2:]
    best = others[-1] if others and others[-1].timed.error <= limit else results[0]
    return TunedFormats(best.timed.policy or base, _note(best, results, tuning, chance), tuning, tuple(results), count)


def _named(base: Policy, name: str, policy: Policy) -> list[tuple[str, Policy | None]]:
    return [] if policy is base else [(name, policy)]


def _note(best: Trained, results: Sequence[Trained], tuning: FormatTuning, chance: float) -> str:
    base, by_chance = results[0].timed.name, f"chance alone makes {percent(chance)}"
    if best is not results[0]:
        return f"{best.timed.name}: trained to a loss {percent(best.timed.error)} from that of {base}; {by_chance}"
    if len(results) == 2:
        return f"{base}: no layer stays within the budget in another format"
    least = min(each.timed.error for each in results[2:])
    budget = f"above {percent(tuning.error or 0)}"
    return f"{base}: what was found trained to a loss {percent(least)} from its, {budget}; {by_chance}"

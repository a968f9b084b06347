"""The policy search for a recipe: its model searched in the middle of a training, and the result trained."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from ...base.errors import ConfigError
from ...config import Recipe
from ...core.policy import Policy
from ...debug.policy_search.tuning import Progress, Tuning, as_toml, decide, tune
from ..loop import fit
from .turns import Show, Trained, batches_at, shortened, train_in_turns, under

_RETRIES = 2


@dataclass(frozen=True)
class TunedRecipe:
    """What `tune_recipe` found.

    policy: to take, None for float32; note: one line that says why. tuning: what the search found on batches. trained:
    float32, the default policy and others, after `steps` steps each.
    """

    policy: Policy | None
    note: str
    tuning: Tuning
    trained: tuple[Trained, ...]
    steps: int

    def toml(self) -> str:
        """The [amp] section of a recipe that runs the policy."""
        return as_toml(self.policy)


def tune_recipe(
    recipe: Recipe, dtype: str | None = None, error: float = 0.01, batches: int = 4, steps: int | None = None,
    show: Show = lambda progress: None,
) -> TunedRecipe:  # fmt: skip
    """The fastest policy for `recipe` whose training loss stays within `error`, relative, of float32's.

    The model is trained in float32 for half of `steps`, and `debug.tune` searches a policy for it on the next `batches`
    batches. Then float32, the default policy and the one found train for `steps` steps from the same seed, in turns;
    where the policies are outside of the error, the search is repeated with a quarter of it, twice at most.
    dtype: bfloat16 or float16; by default the recipe's, or the one of autocast on its device. steps: by default the
    recipe's train.bench_steps, or as many as it trains, at most 300; the schedule is scaled to that length. What the
    recipe's [amp] says of a policy does not count. show: called as it proceeds.
    Raises what `fit` and `debug.tune` raise, and ConfigError for parameters in 16 bits.
    """
    if recipe.amp.parameters == "low":
        raise ConfigError("amp.parameters", "float32, which the policies are compared with", "low")
    recipe = shortened(recipe, steps)
    tuning, steps = _searched(recipe, dtype, error, batches, show)
    # The one found if the search would take it: else it is slower than the default policy.
    first = [each for each in tuning.policies if each.name != "found" or each.policy == tuning.policy]
    results = train_in_turns(recipe, [(each.name, each.policy) for each in first], show)
    best, note = decide(error, [each.timed for each in results])
    for policy in _others(tuning, error):
        within = any(each.timed.error <= error for each in results[1:])
        if within or not any(each.timed.seconds < results[0].timed.seconds for each in results[1:]):
            break  # with a policy that will do, or none that is faster than float32
        if policy is not None and all(policy != each.timed.policy for each in results):
            results += train_in_turns(recipe, [("tightened", policy)], show, results[0])
            best, note = decide(error, [each.timed for each in results])
    return TunedRecipe(best.policy, note, tuning, tuple(results), steps)


def _searched(recipe: Recipe, dtype: str | None, error: float, batches: int, show: Show) -> tuple[Tuning, int]:
    """The search on a model that has trained for half of the steps, and the number of steps."""
    run = fit(under(recipe, None))
    half = run.steps // 2
    for done, _ in enumerate(islice(run, half)):
        show(Progress("training in float32", done + 1, half))
    given, loss = batches_at(recipe, half, batches)
    wanted = dtype or {"float32": None, "float16": "float16"}.get(recipe.amp.dtype, "bfloat16")
    return tune(run.model, given, loss, wanted, error=error, show=show), run.steps


def _others(tuning: Tuning, error: float) -> list[Policy | None]:
    found = [each.policy for each in tuning.policies if each.name == "found"]
    return [*found, *(tuning.tightened(error / 4**i) for i in range(1, _RETRIES + 1))]

"""The policy search for a recipe: its model searched in the middle of a training, and the result trained."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, NamedTuple

from ..base.errors import ConfigError, NonFiniteError
from ..config import Recipe
from ..core import random
from ..core.policy import Policy
from ..debug.policy_search.tuning import Progress, Timed, Tuning, as_toml, decide, tune
from .input_pipeline import input_pipeline
from .loop import EvalRow, StepRow, fit
from .step import objective_of

_MOST_STEPS = 300  # of a training that verifies, unless the caller or the recipe's bench_steps says otherwise
_RETRIES = 2

Show = Callable[[Progress], None]


class Trained(NamedTuple):
    """A policy as a short training found it.

    timed: error is the relative difference of `loss` from float32's, infinite where it failed; seconds: the median of
    a step. loss: the mean over all steps. val_loss: at the end. failure: why it ended early, or None.
    """

    timed: Timed
    loss: float
    val_loss: float
    failure: str | None


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
    recipe = _shortened(recipe, steps)
    tuning, steps = _searched(recipe, dtype, error, batches, show)
    # The one found if the search would take it: else it is slower than the default policy.
    first = [each for each in tuning.policies if each.name != "found" or each.policy == tuning.policy]
    trained = _trained(recipe, [(each.name, each.policy) for each in first], show)
    best, note = decide(error, [each.timed for each in trained])
    for policy in _others(tuning, error):
        within = any(each.timed.error <= error for each in trained[1:])
        if within or not any(each.timed.seconds < trained[0].timed.seconds for each in trained[1:]):
            break  # with a policy that will do, or none that is faster than float32
        if policy is not None and all(policy != each.timed.policy for each in trained):
            trained += _trained(recipe, [("tightened", policy)], show, trained[0])
            best, note = decide(error, [each.timed for each in trained])
    return TunedRecipe(best.policy, note, tuning, tuple(trained), steps)


def _shortened(recipe: Recipe, steps: int | None) -> Recipe:
    wanted = recipe.train.bench_steps if steps is None else steps
    if wanted is None:
        wanted = min(fit(recipe).steps if recipe.train.steps is None else recipe.train.steps, _MOST_STEPS)
    train = {"log_every": 1, "eval_every": None, "steps": wanted, "epochs": None}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})


def _under(recipe: Recipe, policy: Policy | None) -> Recipe:
    amp: dict[str, Any] = {"dtype": "float32", "policy": "default", "overrides": {}, "modules": {}}
    if policy is not None:
        overrides = {op: category.value for op, category in policy.overrides}
        modules = {path: dtype.name for path, dtype in policy.modules}
        amp |= {"dtype": policy.dtype.name, "overrides": overrides, "modules": modules}
    return recipe.model_copy(update={"amp": recipe.amp.model_copy(update=amp)})


def _searched(recipe: Recipe, dtype: str | None, error: float, batches: int, show: Show) -> tuple[Tuning, int]:
    """The search on a model that has trained for half of the steps, and the number of steps."""
    run = fit(_under(recipe, None))
    half = run.steps // 2
    for done, _ in enumerate(islice(run, half)):
        show(Progress("training in float32", done + 1, half))
    first = half * recipe.train.accumulate
    pipeline = input_pipeline(recipe)
    given = list(islice(pipeline.train(first), batches))
    objective = objective_of(recipe, pipeline.about)
    wanted = dtype or (None if recipe.amp.dtype == "float32" else recipe.amp.dtype)

    def loss(model: Any, inputs: Any, *targets: Any) -> Any:
        return objective.loss(model(inputs), *targets)

    return tune(run.model, given, loss, wanted, error=error, show=show), run.steps


def _others(tuning: Tuning, error: float) -> list[Policy | None]:
    found = [each.policy for each in tuning.policies if each.name == "found"]
    return [*found, *(tuning.tightened(error / 4**i) for i in range(1, _RETRIES + 1))]


class _Training:
    # A run with a random stream of its own, so that several take turns.

    def __init__(self, recipe: Recipe, policy: Policy | None):
        self.run = fit(_under(recipe, policy))
        self._rows, self._state = iter(self.run), random.get_rng_state()
        self.losses: list[float] = []
        self.times: list[float] = []
        self.val_loss, self.failure = math.nan, ""

    def advance(self) -> None:
        """One step, or the evaluation after the last."""
        random.set_rng_state(self._state)
        try:
            row = None if self.failure else next(self._rows, None)
        except NonFiniteError as error:
            row, self.failure = None, str(error).partition("\n")[0]
        self._state = random.get_rng_state()
        if isinstance(row, StepRow):
            self.losses.append(row.loss)
            self.times.append(row.seconds)
        elif isinstance(row, EvalRow):
            self.val_loss = row.val_loss

    def result(self, name: str, policy: Policy | None, wide: float | None) -> Trained:
        times = [after - before for before, after in pairwise(self.times)] or self.times or [math.inf]
        loss = statistics.fmean(self.losses) if self.losses else math.nan
        error = math.inf if self.failure else 0.0 if wide is None else abs(loss - wide) / abs(wide or 1.0)
        error = error if math.isfinite(error) else math.inf
        return Trained(Timed(name, policy, error, statistics.median(times)), loss, self.val_loss, self.failure or None)


def _trained(
    recipe: Recipe, policies: Sequence[tuple[str, Policy | None]], show: Show, wide: Trained | None = None
) -> list[Trained]:
    """The policies trained in turns; wide: the result of float32, by default that of the first of them."""
    trainings = [_Training(recipe, policy) for _, policy in policies]
    steps = trainings[0].run.steps
    for done in range((steps + 1) * len(trainings)):  # the evaluation comes last
        trainings[done % len(trainings)].advance()
        show(Progress("verification by training", done + 1, (steps + 1) * len(trainings)))
    found: list[Trained] = []
    for (name, policy), training in zip(policies, trainings, strict=True):
        found.append(training.result(name, policy, wide.loss if wide else found[0].loss if found else None))
    return found

"""Short trainings of one recipe under several policies that take turns, step by step, so that load meets all alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from ... import backends
from ...base.errors import NonFiniteError
from ...config import Recipe
from ...core import random
from ...core.autograd.grad_mode import no_grad
from ...core.policy import Policy, changed_policies
from ...core.tensor import Tensor
from ...debug.policy_search.tuning import Progress, Timed
from ..input_pipeline import input_pipeline
from ..loop import EvalRow, StepRow, fit
from ..step import objective_of

_MOST_STEPS = 300  # of a training that verifies, unless the caller or the recipe's bench_steps says otherwise

_MOVED = 2.0**-6  # the relative change of weights, up or down: enough that runs part early, as by a format
AGAIN = "16 bits again"  # the 16-bit policy from weights that were moved

Show = Callable[[Progress], None]


class Trained(NamedTuple):
    """A policy as a short training found it.

    timed: error is the relative difference of `loss` from float32's, infinite where it failed; times: the seconds of
    its steps. loss: the mean over all steps. val_loss: at the end. failure: why it ended early, or None.
    """

    timed: Timed
    loss: float
    val_loss: float
    failure: str | None


def shortened(recipe: Recipe, steps: int | None) -> Recipe:
    """The recipe with `steps` steps, by default its train.bench_steps or as many as it trains, at most 300."""
    wanted = recipe.train.bench_steps if steps is None else steps
    if wanted is None:
        wanted = min(fit(recipe).steps if recipe.train.steps is None else recipe.train.steps, _MOST_STEPS)
    train = {"log_every": 1, "eval_every": None, "steps": wanted, "epochs": None}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})


def under(recipe: Recipe, policy: Policy | None) -> Recipe:
    """The recipe with autocast in the dtype of `policy`, which a Training puts in the place of the recipe's own."""
    amp: dict[str, Any] = {"dtype": "float32", "recipe": None, "policy": "default", "overrides": {}, "modules": {}}
    if policy is not None:
        amp["dtype"] = policy.dtype.name
    return recipe.model_copy(update={"amp": recipe.amp.model_copy(update=amp)})


class Training:
    """A run of `recipe` under `policy` (None: float32) with a random stream of its own, so that several take turns.

    moved: it starts from weights that differ by 1.6 %, up or down at random; what its loss differs by is chance.
    """

    def __init__(self, recipe: Recipe, policy: Policy | None, moved: bool = False):
        self.run = fit(under(recipe, policy))
        if moved:
            _move(self.run.model)
        self._change = None if policy is None else lambda _: policy
        self._rows, self._state = iter(self.run), random.get_rng_state()
        self.losses: list[float] = []
        self.times: list[float] = []
        self.val_loss, self.failure = math.nan, ""

    def advance(self) -> None:
        """One step, or the evaluation after the last."""
        random.set_rng_state(self._state)
        try:
            with nullcontext() if self._change is None else changed_policies(self._change):
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
        """What it came to; wide: the mean training loss that its own is compared with."""
        times = tuple(after - before for before, after in pairwise(self.times)) or (*self.times,) or (math.inf,)
        loss = statistics.fmean(self.losses) if self.losses else math.nan
        error = math.inf if self.failure else 0.0 if wide is None else abs(loss - wide) / abs(wide or 1.0)
        error = error if math.isfinite(error) else math.inf
        return Trained(Timed(name, policy, error, times), loss, self.val_loss, self.failure or None)


def _move(model: Any) -> None:
    draw = np.random.default_rng(0)
    with no_grad():
        for parameter in model.parameters():
            backend = backends.backend_of(parameter.array)
            signs = draw.integers(2, size=parameter.array.shape) * 2 - 1
            parameter.mul_(Tensor(backend.asarray((1 + signs * _MOVED).astype(parameter.array.dtype))))


def train_in_turns(
    recipe: Recipe, policies: Sequence[tuple[str, Policy | None]], show: Show, wide: Trained | None = None
) -> list[Trained]:
    """The policies trained in turns; wide: the result that they are compared with, by default that of the first.

    A policy by the name AGAIN starts from weights that were moved.
    """
    trainings = [Training(recipe, policy, name == AGAIN) for name, policy in policies]
    steps = trainings[0].run.steps
    for done in range((steps + 1) * len(trainings)):  # the evaluation comes last
        trainings[done % len(trainings)].advance()
        show(Progress("verification by training", done + 1, (steps + 1) * len(trainings)))
    found: list[Trained] = []
    for (name, policy), training in zip(policies, trainings, strict=True):
        found.append(training.result(name, policy, wide.loss if wide else found[0].loss if found else None))
    return found


def batches_at(recipe: Recipe, step: int, count: int) -> tuple[list[Any], Callable[..., Any]]:
    """`count` batches of the training as they come after `step` steps, and its loss(model, *batch) -> Tensor []."""
    pipeline = input_pipeline(recipe)
    objective = objective_of(recipe, pipeline.about)

    def loss(model: Any, inputs: Any, *targets: Any) -> Any:
        return objective.loss(model(inputs), *targets)

    return list(islice(pipeline.train(step * recipe.train.accumulate), count)), loss

"""Short trainings of a recipe from its start at other learning rates, by which a failed run tries that cure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..base.errors import ConfigError, FileError, NonFiniteError, ScaleCollapseError
from ..config import Recipe
from ..core import random
from ..debug.repeat.learning_rate import LEAST, Training, grows

if TYPE_CHECKING:
    from .loop import Run

Start = Callable[[Recipe], "Run"]

_MOST_SECONDS = 20.0  # of a training that is repeated from its start


def training_of(run: Run, start: Start) -> Training:
    """Trains the recipe of `run` from its start, for a few steps more than were done, with a factor for optimizer.lr.

    It gives no losses where that would take long, or other ranks would have to take part.
    """
    steps = min(run.steps, max(LEAST, run.done + 10))
    if run.ranks.size > 1 or run.seconds > _MOST_SECONDS:
        return Training(lambda factor: None, run.recipe.optimizer.lr, "optimizer.lr")
    return Training(partial(retrain, start, run.recipe, steps), run.recipe.optimizer.lr, "optimizer.lr")


def retrain(start: Start, recipe: Recipe, steps: int, factor: float) -> list[float] | None:
    """The losses of a short training of `recipe` with `factor` times its learning rate; None if one is not finite.

    Its schedule is scaled to `steps`. The stream of random numbers is afterwards as it was.
    """
    state, losses = random.get_rng_state(), list[float]()
    try:
        run = start(_shortened(recipe, steps, factor))
        run._replay.silent = True  # else trainings would explain its failure, and others theirs
        while run.done < steps:
            row = run.advance()
            if row is None or grows(losses := [*losses, row.loss]):
                return None
    except (ConfigError, FileError, NonFiniteError, ScaleCollapseError):  # the file of model.weights may be gone
        return None
    finally:
        random.set_rng_state(state)
    return losses


def _shortened(recipe: Recipe, steps: int, factor: float) -> Recipe:
    changes = {"steps": steps, "epochs": None, "log_every": 1, "eval_every": None, "patience": None, "compile": False}
    short = {
        "optimizer": recipe.optimizer.model_copy(update={"lr": recipe.optimizer.lr * factor}),
        "train": recipe.train.model_copy(update=changes),
        "debug": recipe.debug.model_copy(update={"ranges_every": 0}),
    }
    if getattr(recipe.schedule, "warmup", 0):
        warmup = min(recipe.schedule.warmup, steps // 4)
        short["schedule"] = recipe.schedule.model_copy(update={"warmup": warmup})
    return recipe.model_copy(update=short)

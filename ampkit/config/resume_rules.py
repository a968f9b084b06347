"""The keys of a recipe that may differ when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..base.errors import ConfigError
from ..core.policy.recipe import FAMILIES
from .recipe import Recipe

# Length, intervals, device, and what ranks share out. All others but those of [debug] change the result.
_TRAIN = {"steps", "epochs", "bench_steps", "log_every", "eval_every", "eval_batches", "patience"}
_TRAIN |= {"checkpoint_every", "keep", "keep_best", "threads", "device", "compile", "loggers"}
FREE = {"train": _TRAIN, "parallel": {"data", "stage", "tensor", "pipeline"}}


class Change(NamedTuple):
    """A key with its value in the checkpoint and in the recipe."""

    key: str
    before: Any
    now: Any


def continued(recipe: Recipe, before: Recipe | Mapping[str, Any]) -> Recipe:
    """`recipe` for resuming a run of `before`, with the same number of threads unless `recipe` sets it.

    before: a recipe, or the dict of one. Only the keys `FREE` and those of [debug] may differ.
    Raises ConfigError, which names the others that do.
    """
    if not isinstance(before, Recipe):
        before = saved_recipe("resume", before)
    if changes := list(_changes(recipe, before)):
        then = ", ".join(f"{key}={_short(was)}" for key, was, _ in changes)
        now = ", ".join(f"{key}={_short(new)}" for key, _, new in changes)
        cure = "use the recipe of the run, or start in another run directory"
        raise ConfigError("resume", f"{then}, with which the run was trained", now, cure)
    threads = before.train.threads if recipe.train.threads is None else recipe.train.threads
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"threads": threads})})


def saved_recipe(where: str, values: Mapping[str, Any]) -> Recipe:
    """The recipe of a checkpoint. Raises ConfigError if this ampkit does not know it."""
    amp = values.get("amp")
    if isinstance(amp, Mapping) and "output_layer" not in amp:  # recipes of older ones quantized it with the others
        quantizes = amp.get("dtype") in FAMILIES or amp.get("recipe") is not None
        values = {**values, "amp": {**amp, "output_layer": "recipe" if quantizes else "low"}}
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"])) or "its sections"
        raise ConfigError(where, "a recipe that this ampkit knows", f"another {key} in the checkpoint") from None


def _changes(recipe: Recipe, before: Recipe) -> Iterator[Change]:
    then, now = before.model_dump(mode="json"), recipe.model_dump(mode="json")
    for section, values in now.items():
        was = then[section]
        if was.get("name") != values.get("name"):
            yield Change(f"{section}.name", was.get("name"), values.get("name"))
            continue
        for key, value in values.items():
            if was[key] != value and not (section == "debug" or key in FREE.get(section, ())):
                yield Change(f"{section}.{key}", was[key], value)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)

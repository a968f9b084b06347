"""A recipe to begin with: the nearest that comes with ampkit, with other data and model, and every key explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..base.registry import DATASETS, MODELS
from .field_types import Section
from .keys import Key, keys
from .read import RECIPES, checked, missing, overridden, parse_toml
from .recipe import Recipe
from .sections import SECTIONS
from .write import toml_value

Tables = dict[str, Any]


def data_choices() -> dict[str, str]:
    """{data.name: the first sentence of its documentation} of the data sets that a recipe can name."""
    return {name: (entry.load.__doc__ or "").strip().partition("\n")[0] for name, entry in DATASETS.items()}


def models_for(data: str) -> list[str]:
    """The models that train on a data set, first those of recipes that come with ampkit, the nearest first."""
    fitting = [name for name, entry in MODELS.items() if DATASETS[data].samples in entry.samples]
    used = ["mlp"] if DATASETS[data].loading == "dataset" else []
    used += [each["model"]["name"] for each in _recipes() if each["data"]["name"] == data]
    used += [each["model"]["name"] for each in _recipes()]
    return [*dict.fromkeys(name for name in [*used, *fitting] if name in fitting)]


def draft(data: str, model: str, overrides: Sequence[str]) -> Tables:
    """The tables of a recipe for a data set and a model, with `overrides` such as "train.steps=100" applied.

    What `overrides` leave open is as in the nearest recipe that comes with ampkit. Raises ConfigError for an override
    that is none.
    """
    nearest = max(_recipes(), key=lambda each: (each["model"]["name"] == model, each["data"]["name"] == data))
    tables: Tables = {"model": {"name": model}, "data": {"name": data}}
    for section, table in nearest.items():
        if section not in tables or table["name"] == tables[section]["name"]:
            tables[section] = dict(table)
    least = getattr(_kind("data", tables["data"]), "least_vocab", None)
    if least and "vocab_size" in _kind("model", tables["model"]).model_fields:
        tables["model"]["vocab_size"] = least
    if DATASETS[data].loading == "text" and tables["train"].pop("epochs", None):
        tables["train"]["steps"] = 500
    proposed = tables.get("schedule", {}).pop("warmup", 0)
    tables = overridden("init", tables, overrides)
    if proposed and "warmup" in _kind("schedule", tables["schedule"]).model_fields:
        steps = tables["train"].get("steps")
        tables["schedule"].setdefault("warmup", min(proposed, steps // 10) if isinstance(steps, int) else proposed)
    return tables


def open_keys(tables: Tables) -> dict[str, str | None]:
    """{"data.folder": the proposed value}: where the files of the data are, and what a recipe must still say: None."""
    fields, said = _kind("data", tables["data"]).model_fields, tables["data"]
    files = {f"data.{key}": said.get(key, "") for key in ("path", "folder", "files") if key in fields}
    return files | dict.fromkeys(missing(tables))


def key_of(dotted: str, tables: Tables) -> Key:
    """What is known of a key of these tables: type, default, meaning."""
    section, _, name = dotted.partition(".")
    return next(key for key in keys(_kind(section, tables[section])) if key.name == name)


def text(tables: Tables, name: str) -> str:
    """The TOML of a recipe, with the meaning of each key; what is left at its default is commented out.

    Raises ConfigError for tables that are no recipe.
    """
    recipe = checked(name, tables)
    head = f"# {name}: {recipe.model.name} on {recipe.data.name}. A line that begins with # is left at its default."
    return "\n\n".join([head, *(_section(each, recipe, tables.get(each, {})) for each in Recipe.model_fields)]) + "\n"


def _section(section: str, recipe: Recipe, said: Mapping[str, Any]) -> str:
    kind = getattr(recipe, section)
    lines = [f"[{section}]", *([f"name = {toml_value(kind.name)}"] if "name" in type(kind).model_fields else [])]
    return "\n".join([*lines, *(_line(key, said) for key in keys(type(kind)))])


def _line(key: Key, said: Mapping[str, Any]) -> str:
    meaning = f"{key.meaning} ({key.type})" if key.meaning else key.type
    if key.name in said:
        return f"{key.name} = {toml_value(said[key.name])}  # {meaning}"
    default = "" if key.default in ("unset", "required") else f" {key.default}"
    return f"# {key.name} ={default}  # {meaning}"


def _kind(section: str, table: Mapping[str, Any]) -> type[Section]:
    kinds = SECTIONS[section]
    return kinds.get("") or kinds.get(table.get("name", ""), Section)


def _recipes() -> Iterator[Tables]:
    for path in sorted(RECIPES.rglob("*.toml"), key=lambda path: (len(path.parts), path)):
        yield parse_toml(path.read_text())

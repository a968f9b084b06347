"""A MkDocs hook for two pages about recipes.

`recipe-keys.md` has every key of a recipe, with its values and default, from the models. `recipes.md` is
recipes/README.md.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ampkit.config.recipe import Recipe


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    files.append(File.generated(config, "recipe-keys.md", content=recipe_keys()))
    files.append(File.generated(config, "recipes.md", content=recipes()))
    return files


def recipes() -> str:
    """recipes/README.md, with links as they are within the site."""
    text = (Path(__file__).parents[2] / "recipes" / "README.md").read_text()
    return text.replace("](../docs/", "](").replace("](../README.md#documentation)", "](recipe-keys.md)")


def recipe_keys() -> str:
    """A page of all keys that a recipe can have: kind of value, default, bounds."""
    parts = [
        "# Recipe keys",
        "A recipe is a TOML file with a table per section. `section.key=value` on the command line replaces a key, "
        "`section.key=` unsets it. Where a section has several kinds, its `name` chooses one.",
    ]
    for section, field in sorted(Recipe.model_fields.items(), key=lambda item: _kinds(item[1].annotation)[1:] != []):
        kinds = _kinds(field.annotation)
        parts.append(f"## [{section}]")
        for kind in kinds:
            if len(kinds) > 1:
                parts.append("### " + ", ".join(f"{name}" for name in get_args(kind.model_fields["name"].annotation)))
            about, keys = _parts(kind)
            parts += [_literal(about), key_table(section, kind, keys)]
    return "\n\n".join(parts) + "\n"


def _literal(text: str) -> str:
    """Text as Markdown in which no character means emphasis; what is in backticks is code."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*_>|\[\]])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]]
    return "`".join(pieces)


def _parts(kind: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """What a model's docstring says of the section, and of single keys: sentences that begin with `key:`."""
    doc = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    keys = "|".join(kind.model_fields)
    about, *rest = re.split(rf"(?:^|(?<=[.;] ))({keys})( None)?: ", doc)
    found: dict[str, str] = {}
    for key, unset, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        sentence = f"{'unset: ' if unset else ''}{text.strip(' ;')}"
        found[key] = f"{found[key]} {sentence}" if key in found else sentence
    return about.strip(), found


def _kinds(annotation: Any) -> list[type[BaseModel]]:
    """The models that a section can be."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for part in get_args(annotation) for kind in _kinds(part)]


def key_table(section: str, kind: type[BaseModel], keys: dict[str, str]) -> str:
    """A row for each key of a model."""
    rows = ["| key | value | default |", "|---|---|---|"]
    for key, field in kind.model_fields.items():
        if key == "name" and len(get_args(field.annotation)) == 1:
            continue  # the heading says it
        description = field.description or keys.get(key, "")
        about = f"<br>{_literal(description.replace('None', 'unset'))}" if description else ""
        rows.append(f"| `{section}.{key}` | {_type(field.annotation, field.metadata)}{about} | {_shown(field)} |")
    return "\n".join(rows)


def _shown(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return f"`{_toml(field.get_default(call_default_factory=True))}`"
    if field.default is PydanticUndefined:
        return "required"
    return "unset" if field.default is None else f"`{_toml(field.default)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return "{}" if value == {} else f"{value}"


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _type(annotation: Any, metadata: Any = ()) -> str:
    """What a key takes, in words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0], args[1:])
    if origin is Literal:
        text = ", ".join(f"`{_toml(arg)}`" for arg in args)
    elif origin is tuple:
        items = args[:1] if args[-1] is Ellipsis else args
        number = "" if args[-1] is Ellipsis else f"{len(items)} values, each "
        text = f"a list: {number}{_type(items[0])}"
    elif origin is dict:
        text = f"a table from names to {_type(args[1])}"
    elif args:
        text = " or ".join(_type(arg) for arg in args if arg is not type(None))
    else:
        text = _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))
    bounds = _bounds(metadata)
    return f"{text}, {bounds}" if bounds else text


def _bounds(metadata: Any) -> str:
    constraints = [c for item in metadata for c in getattr(item, "metadata", [item])]
    found = ((name, getattr(c, name, None)) for c in constraints for name in _BOUNDS)
    # Upper bounds beyond that only catch slips of the keyboard.
    return ", ".join(f"{_BOUNDS[name]} {bound}" for name, bound in found if bound is not None and abs(bound) < 2**15)

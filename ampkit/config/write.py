"""Recipes as TOML 1.0, every default written out."""

from __future__ import annotations

import json
import re
from typing import Any

from .recipe import Recipe


def dump(recipe: Recipe) -> str:
    """The complete TOML of a recipe; `load` returns an equal one. A key that is None is left out."""
    tables = recipe.model_dump(exclude_none=True)
    return "\n".join(f"[{name}]\n{_key_lines(table)}" for name, table in tables.items())


def _key_lines(table: dict[str, Any]) -> str:
    return "".join(f"{_key(key)} = {toml_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _text(key)


def toml_value(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but JSON leaves DEL as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Writing a recipe back as TOML (1.0), every default spelled out."""

from __future__ import annotations

import json
import re
from typing import Any

from .recipe import Recipe


def dump(recipe: Recipe) -> str:
    """The complete TOML of a recipe; `load` of it gives an equal one. None is left out, and is None again."""
    tables = recipe.model_dump(exclude_none=True)
    return "\n".join(f"[{name}]\n{_lines(table)}" for name, table in tables.items())


def _lines(table: dict[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but JSON leaves DEL as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""A MkDocs hook for two pages about recipes.

`recipe-keys.md` has every key of a recipe, with its type, default and meaning, from the sections. `recipes.md` is
recipes/README.md.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from ampkit.config.field_types import Section
from ampkit.config.keys import keys
from ampkit.config.sections import SECTIONS


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    files.append(File.generated(config, "recipe-keys.md", content=recipe_keys()))
    files.append(File.generated(config, "recipes.md", content=recipes()))
    return files


def recipes() -> str:
    """recipes/README.md, with links as they are within the site."""
    text = (Path(__file__).parents[2] / "recipes" / "README.md").read_text()
    return text.replace("](../docs/index.md)", "](recipe-keys.md)").replace("](../docs/", "](")


def recipe_keys() -> str:
    """A page of all keys that a recipe can have."""
    parts = [
        "# Recipe keys",
        "A recipe is a TOML file with a table per section. `section.key=value` on the command line replaces a key, "
        "`section.key=` unsets it. Where a section has several kinds, its `name` chooses one.",
    ]
    for section, kinds in sorted(SECTIONS.items(), key=lambda item: len(item[1]) > 1):
        parts.append(f"## [{section}]")
        for name, kind in kinds.items():
            about = _literal(cleandoc(kind.__doc__ or "").partition("\n\n")[0])
            parts += [*([f"### {name}"] if name else []), about, key_table(section, kind)]
    return "\n\n".join(parts) + "\n"


def key_table(section: str, kind: type[Section]) -> str:
    """A row for each key of a section."""
    rows = ["| key | type and meaning | default |", "|---|---|---|"]
    for key in keys(kind):
        default = key.default if key.default in ("required", "unset") else f"`{key.default}`"
        about = "<br>".join(
            _literal(text) for text in (key.type, key.meaning) if text
        )  # one column, for narrow screens
        rows.append(f"| `{section}.{key.name}` | {about} | {default} |")
    return "\n".join(rows)


def _literal(text: str) -> str:
    """Text as Markdown in which no character means emphasis; what is in backticks is code."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*_>|\[\]])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]]
    return "`".join(pieces)

"""`ampkit keys`: the keys of a recipe, by section, kind or name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..base.errors import ConfigError
from ..config.field_types import Section
from ..config.keys import Key, keys
from ..config.sections import SECTIONS
from ..config.suggestions import did_you_mean, is_key, keys_named
from . import display

_NAMED = {name: section for section, kinds in SECTIONS.items() for name in kinds if name}


def run(options: argparse.Namespace, console: Console) -> int:
    """Print what a recipe may say: an overview, the keys of a section or of a kind, or what a key means."""
    word = options.word
    if options.all or word in SECTIONS or word in _NAMED:
        _print_keys(None if options.all else word, console)
    elif word is None:
        console.print(_overview())
    elif found := ([word] if is_key(word) else keys_named(word)):
        for key in found:
            console.print(_key_of_kinds(key))
    else:
        names = {key: None for kinds in SECTIONS.values() for kind in kinds.values() for key in kind.model_fields}
        cure = did_you_mean(word, [*SECTIONS, *_NAMED, *names]) or f"sections: {', '.join(SECTIONS)}"
        raise ConfigError(f"unknown section or key {word!r}", cure=cure)
    return 0


def _print_keys(word: str | None, console: Console) -> None:
    first: dict[str, str] = {}  # of the sections shown, a key
    for section, kinds in SECTIONS.items():
        for name, kind in kinds.items():
            if word in (None, section, name):
                found = list(keys(kind))
                console.print(display.key_table(section, name, found))
                if found:
                    first.setdefault(section, found[0].name)
    if len(first) == 1:
        section, key = first.popitem()
        how = f"`ampkit train RECIPE {section}.{key}=VALUE`, or `{key} = VALUE` below `[{section}]` in the recipe"
        display.print_line(console, f"to set a key: {how}")


def _overview() -> Table:
    table = Table(title="The sections of a recipe", title_justify="left", caption_justify="left")
    table.add_column("section")
    table.add_column("what it may say")
    for section, kinds in SECTIONS.items():
        table.add_row(escape(f"[{section}]"), escape(_said(kinds)))
    table.caption = (
        "`ampkit keys optimizer`, `keys adamw`, `keys lr` list types, defaults and meanings; --all, all of them"
    )
    return table


def _said(kinds: Mapping[str, type[Section]]) -> str:
    named = [name for name in kinds if name]
    return f"name = {', '.join(named)}" if named else ", ".join(key.name for key in keys(kinds[""]))


def _key_of_kinds(dotted: str) -> Table:
    """The key `section.key` in every kind of its section that has it, kinds where it is the same in one row."""
    section, _, name = dotted.partition(".")
    rows: dict[Key, list[str]] = {}
    for kind, key in _found(section, name):
        rows.setdefault(key, []).append(kind)
    table = Table(title=escape(dotted), title_justify="left")
    for column in ("type", "default", "meaning", *([f"{section}.name"] if any(map(any, rows.values())) else [])):
        table.add_column(column)
    for key, of in rows.items():
        table.add_row(*map(escape, (key.type, key.default, key.meaning)), *([", ".join(of)] if any(of) else []))
    return table


def _found(section: str, name: str) -> Iterator[tuple[str, Key]]:
    for kind, fields in SECTIONS[section].items():
        yield from ((kind, key) for key in keys(fields) if key.name == name)

"""Read a recipe: parse TOML, apply `key=value` overrides, validate, and report every mistake at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ..base.errors import ConfigError, FileError
from ..base.files import content, reason
from ..base.registry import Fault
from .recipe import Recipe, misfits
from .sections import SECTIONS
from .suggestions import did_you_mean, is_key, keys_named, kind_meant

_CHECKS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(annotation)
    for name, annotation in get_type_hints(Recipe, include_extras=True).items()
    if name in SECTIONS
}

# Pydantic's error types as ampkit's messages; the braces take the bounds that pydantic reports.
_NEEDS = {
    "missing": "a value",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
}
_NO_TABLE = ("model_type", "model_attributes_type")
_DEVICES = ("gpu", "GPU", "mps", "auto")  # by the words of other libraries


_PACKAGE = Path(__file__).parents[1]
# The recipes that come with ampkit: copied into the package by the build, or beside it in a clone.
RECIPES = _PACKAGE / "recipes" if (_PACKAGE / "recipes").is_dir() else _PACKAGE.parent / "recipes"
_MAX_BYTES = 2**20  # bytes of a recipe
_MAX_PARTS = 100  # parts of a key
_DEEP = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){100}""")


def load(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in the TOML file `path`, with `overrides` such as "amp.dtype=float16" applied to it.

    A name without a suffix, such as "digits_cnn" or "synthetic/gpt", is that of a recipe that comes with ampkit.
    The value of an override is TOML, or else text; an empty one (`train.epochs=`) unsets the key.
    Raises ConfigError for a file that is missing or not TOML, and one ConfigError with a line per mistake for
    the rest: unknown keys and names (with the nearest known one), types, bounds, sections that do not fit each other.
    """
    return checked(str(path), *_overridden(_read(_located(Path(path))), overrides))


def checked(where: str, tables: Mapping[str, Any], faults: Sequence[Fault] = ()) -> Recipe:
    """The recipe of these tables. Raises ConfigError, which names `where`, with a line per mistake, `faults` first."""
    sections, wrong = _check(tables)
    found = [*faults, *wrong, *misfits(sections)]
    if found:
        raise _error(where, found)
    return Recipe(**sections)


def overridden(where: str, tables: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The tables with "section.key=value" written into them. Raises ConfigError for other text."""
    tables, faults = _overridden(tables, overrides)
    if faults:
        raise _error(where, faults)
    return tables


def _overridden(tables: dict[str, Any], overrides: Iterable[str]) -> tuple[dict[str, Any], list[Fault]]:
    overrides = [*overrides]
    for override in overrides:
        _prepare(tables, override)
    return tables, [fault for override in overrides for fault in _apply(tables, override)]


def missing(tables: Mapping[str, Any]) -> list[str]:
    """The keys that the tables must have and do not: "data.folder"."""
    return [fault.key for fault in _check(tables)[1] if fault.needs == _NEEDS["missing"]]


def _error(where: str, faults: Sequence[Fault]) -> ConfigError:
    if len(faults) == 1:
        key, needs, got, hint = faults[0]
        return ConfigError(f"{where}: {key}", needs, got, hint)
    return ConfigError(f"{where}: {len(faults)} mistakes" + "".join(f"\n  {fault}" for fault in faults))


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(content(path, "recipe", _MAX_BYTES).decode("utf-8"))
    except FileError as error:
        raise ConfigError(str(error), cure=_near(path)) from None
    except (ValueError, RecursionError) as error:  # TOML's and UTF-8's errors are ValueErrors both
        raise ConfigError(str(path), "TOML", f"text that is none: {reason(error)}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of TOML. Raises ValueError for other text, and for keys of so many parts that parsing takes long."""
    if _DEEP.search(text):  # the parser takes time with the square of the parts
        raise ValueError("a key of more than 100 parts")
    return tomllib.loads(text)


def _located(path: Path) -> Path:
    """`path`, or the file of the recipe of that name that comes with ampkit."""
    own = RECIPES / f"{path}.toml"
    return own if not path.suffix and not path.is_absolute() and not _is_file(path) and _is_file(own) else path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a path that cannot be one: reading it says why
        return False


def _near(path: Path) -> str:
    own = sorted(file.relative_to(RECIPES).with_suffix("").as_posix() for file in RECIPES.rglob("*.toml"))
    if not path.suffix and (found := did_you_mean(path.as_posix(), own)):
        return found
    found = None
    with suppress(OSError, ValueError):  # a folder that cannot be read, or none
        found = did_you_mean(path.name, [file.name for file in path.parent.glob("*.toml") if file.is_file()])
    with_ampkit = ", ".join(name for name in own if "/" not in name)
    return found or f"recipes that come with ampkit: {with_ampkit}; `ampkit init NAME` writes one"


def _prepare(tables: dict[str, Any], override: str) -> None:
    """Where an override names another kind of a section, drop the keys of the file that only the former kind has."""
    key, _, name = override.partition("=")
    section, _, last = key.strip().partition(".")
    kind, table = SECTIONS.get(section, {}).get(name.strip().strip("\"'")), tables.get(section)
    if last == "name" and kind is not None and isinstance(table, dict):
        tables[section] = {each: value for each, value in table.items() if each in kind.model_fields}


def _apply(tables: dict[str, Any], override: str) -> Iterator[Fault]:
    """Write `key.sub=value` into the tables; yields a Fault for a mistake."""
    key, sign, value = override.partition("=")
    *above, last = parts = key.strip().split(".")
    if not sign or not all(parts) or len(parts) > _MAX_PARTS or len(key) > 100 * _MAX_PARTS:
        hint = None if sign else _meant(override.strip())
        yield Fault("override", "key=value, as in amp.dtype=float16", _short(override), hint)
        return
    table: Any = tables
    for depth, part in enumerate(above, 1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            yield Fault(key.strip(), f"a table at {'.'.join(parts[:depth])}", _short(table))
            return
    if not value.strip():
        table.pop(last, None)
        return
    try:
        table[last] = _value(value.strip())
    except (ValueError, RecursionError) as error:
        yield Fault(key.strip(), "a value that TOML can hold", f"one that it cannot: {reason(error)}")


def _meant(word: str) -> str | None:
    """What a word without `=` probably was to be."""
    if found := [word] if is_key(word) else keys_named(word):
        return f"write {' or '.join(f'{key}=VALUE' for key in found)}"
    return "one recipe at a time" if len(word) < 100 and _is_file(_located(Path(word))) else None


def _value(text: str) -> Any:
    try:
        found = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 else text


def _check(tables: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """(the valid sections with their defaults, the mistakes in the others)."""
    sections: dict[str, Any] = {}
    unknown = [name for name in tables if name not in _CHECKS]
    faults = [Fault(name, "a known section", repr(name), _hint("", name)) for name in unknown]
    for name, field in Recipe.model_fields.items():
        if name not in tables and field.is_required():
            faults.append(Fault(name, f"a section [{name}]", "none"))
            continue
        try:
            sections[name] = _CHECKS[name].validate_python(tables[name]) if name in tables else field.default
        except ValidationError as error:
            details = _without_repeats(error.errors(include_url=False))
            faults += [_fault(name, tables[name], detail) for detail in details]
    return sections, faults


def _without_repeats(errors: Iterable[ErrorDetails]) -> Iterator[ErrorDetails]:
    # For a list with a bad item pydantic also reports that it is too short.
    for error in errors:
        if error["type"] != "too_short" or len(error["input"]) < error["ctx"]["min_length"]:
            yield error


def _fault(section: str, table: Any, error: ErrorDetails) -> Fault:
    """One of pydantic's errors in a section as a Fault."""
    kind, given = error["type"], error["input"]
    if kind.startswith("union_tag"):
        return _unknown_name(f"{section}.name", table.get("name"), list(SECTIONS[section]))
    # Pydantic's path into a named section starts with that name.
    steps = error["loc"] if "" in SECTIONS[section] else error["loc"][1:]
    key = section + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    if kind == "extra_forbidden":
        return Fault(key, "a known key", repr(steps[-1]), _hint(section, str(steps[-1]), table))
    if kind == "literal_error":
        return _unknown_name(key, given, re.findall("'([^']*)'", error["ctx"]["expected"]))
    got = "nothing" if kind == "missing" else _short(given)
    quoted = kind in ("int_type", "float_type") and isinstance(given, str)
    hint = "numbers are written as 0.5 or 1e-3" if quoted else None
    if kind in _NO_TABLE:
        hint = f"write {section}.name={given}" if given in tuple(SECTIONS[section]) else f"write {section}.<key>=..."
    if key == "train.device" and given in _DEVICES:
        hint = "train.device=cuda is a GPU"
    return Fault(key, _needs(section, table, error), got, hint)


def _needs(section: str, table: Any, error: ErrorDetails) -> str:
    if error["type"] == "string_pattern_mismatch":
        return _fields(section, table)[str(error["loc"][-1])].title or "a path without a zero byte"
    words = _NEEDS.get(error["type"])
    bounds = {name: _number(bound) for name, bound in error.get("ctx", {}).items()}
    return words.format(**bounds) if words else error["msg"]


def _number(bound: Any) -> Any:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _unknown_name(key: str, given: Any, words: list[str]) -> Fault:
    got = "nothing" if given is None else _short(given)
    return Fault(key, f"one of {', '.join(words)}", got, kind_meant(given, words))


def _fields(section: str, table: Any) -> dict[str, Any]:
    """The keys of a section, of the kind that its table names."""
    kinds = SECTIONS[section]
    kind = kinds.get("") or kinds.get(table.get("name"))
    return kind.model_fields if kind else {}


def _hint(section: str, key: str, table: Any = None) -> str | None:
    """A suggestion for an unknown key: the same one of another section, or the nearest of its own."""
    here = _fields(section, table) if section else _CHECKS
    return _elsewhere(section, key) or did_you_mean(key, here) or (f"known: {', '.join(here)}" if section else None)


def _elsewhere(section: str, key: str) -> str | None:
    found = keys_named(key, section)
    return f"did you mean {' or '.join(found)}?" if found else None


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in hundreds of lists
        return "one that is too long to be shown"
    return text if len(text) <= 60 else text[:57] + "..."

"""Recipe sections derived from signatures: names, types, bounds and defaults of the keys are written once, there."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import Field, create_model, model_validator

from ..base.limits import Count, Number
from .field_types import FilePath, Section

_SIMPLE = {bool: bool, int: Count, float: Number, str: str, Path: FilePath}


def derive_section(
    name: str,
    source: Callable[..., Any],
    *,
    exclude: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    base: type[Section] = Section,
    extra: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
    complete: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> type[Section]:
    """A section `name` with a key for each parameter of `source`, a function or class, not in `exclude`.

    A key has its parameter's annotation and default. `Annotated` bounds (`base.limits`) are checked; a plain int is at
    least 1, a float finite; of a union the sequence is taken, of `float | Tensor` the float.
    defaults, types: for keys whose default or annotation in a recipe differs. constants: attributes that are no keys.
    base, extra: a section and fields whose keys it has besides. complete: adds keys that are left out to those that are
    written, before they are checked.
    """
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for key, field in base.model_fields.items():
        if key in (defaults or {}):
            fields[key] = Annotated[(field.annotation, *field.metadata)], (defaults or {})[key]
    fields |= signature_fields(source, exclude=exclude, defaults=defaults, types=types)
    before: dict[str, Any] = (
        {} if complete is None else {"complete": model_validator(mode="before")(_given_a_table(complete))}
    )
    doc = inspect.getdoc(source)
    made = create_model(name, __base__=base, __doc__=doc, __validators__=before, **fields, **(extra or {}))
    for key, value in (constants or {}).items():
        setattr(made, key, value)
    return made


def _given_a_table(complete: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Callable[[Any], Any]:
    return lambda table: complete(table) if isinstance(table, dict) else table


def signature_fields(
    source: Callable[..., Any],
    *,
    include: Collection[str] | None = None,
    exclude: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
) -> dict[str, tuple[Any, Any]]:
    """{key: (type, default)}, what `pydantic.create_model` takes, for the parameters of `source`; see derive_section.

    The description of a key is the sentence after `key:` in the docstring of `source`, or of the one it says to `see`.
    """
    target: Any = source.__init__ if inspect.isclass(source) and not is_dataclass(source) else source
    hints, meanings = get_type_hints(target, include_extras=True), _meanings(source)
    fields: dict[str, Any] = {}
    for key, parameter in inspect.signature(source).parameters.items():
        left_out = key in exclude if include is None else key not in include
        if left_out or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = (defaults or {}).get(key, parameter.default)
        field = Field(... if default is parameter.empty else default, description=meanings.get(key))
        fields[key] = field_type((types or {}).get(key, hints[key])), field
    return fields


def _meanings(source: Callable[..., Any]) -> dict[str, str]:
    if isinstance(source, type):  # a class whose docstring leaves out what that of its base says
        meanings: dict[str, str] = {}
        for kind in reversed(source.__mro__):
            meanings |= key_meanings(kind.__doc__) if kind.__module__.startswith(__package__.partition(".")[0]) else {}
        return meanings
    doc = inspect.getdoc(source) or ""
    other = re.search(r"\bsee (\w+)", doc)
    beside = vars(sys.modules[source.__module__]) if inspect.isclass(source) else getattr(source, "__globals__", {})
    related = beside.get(other[1]) if other else None
    return key_meanings(inspect.getdoc(related)) | key_meanings(doc) if related else key_meanings(doc)


def key_meanings(doc: str | None) -> dict[str, str]:
    """The sentence of a docstring that explains each key: `width: channels of the first stage. depth, size: ...`."""
    text = " ".join((doc or "").split())
    found = re.finditer(r"(?<![\w.`])([a-z]\w*(?:, [a-z]\w*)*): (.+?)(?:\.(?= [A-Za-z`]|$)|$)", text)
    return {name: match[2] for match in found for name in match[1].split(", ")}


def field_type(annotation: Any) -> Any:
    """The type of the key for a parameter of type `annotation`. Raises TypeError for one that TOML cannot hold."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if origin is Annotated:
        return Annotated[(_sequence(args[0]) or args[0], *args[1:])]
    if origin is Literal:
        return annotation
    if origin in (Union, UnionType):
        return _union(args)
    if sequence := _sequence(annotation):
        return sequence
    raise TypeError(f"no recipe key can hold {annotation}")


def _sequence(annotation: Any) -> Any:
    """The tuple type for a tuple or Sequence, None for anything else. A tuple's schema must accept TOML's lists."""
    origin, args = get_origin(annotation), get_args(annotation)
    items: Any
    if origin is tuple:
        items = tuple(each if each is ... else field_type(each) for each in args)
    elif origin in (Sequence, list):
        items = field_type(args[0]), ...
    else:
        return None
    return Annotated[tuple.__class_getitem__(items), Field(strict=False)]


def _union(members: Sequence[Any]) -> Any:
    """The sequence among `members`, else the first that a key can hold; None stays allowed."""
    members = sorted(members, key=lambda each: each is not Path and not _is_sequence(each))
    for member in members:
        if member is not NoneType:
            try:
                found = field_type(member)
            except TypeError:
                continue
            return found | None if NoneType in members else found
    raise TypeError(f"no recipe key can hold one of {members}")


def _is_sequence(annotation: Any) -> bool:
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return get_origin(plain) in (tuple, list, Sequence)

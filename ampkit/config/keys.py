"""The keys of a recipe, described: type, default and meaning, from the sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ..base.limits import Limits
from .derived import key_meanings
from .field_types import Section
from .write import toml_value


class Key(NamedTuple):
    """A key of a recipe, as text: what it takes, its default as TOML, and its meaning or ""."""

    name: str
    type: str
    default: str
    meaning: str


def keys(section: type[Section]) -> Iterator[Key]:
    """The keys of a section, `name` left out."""
    meanings: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        meanings |= key_meanings(kind.__doc__)
    for name, field in section.model_fields.items():
        if name != "name":
            meaning = field.description or meanings.get(name, "")
            yield Key(name, _type(field.annotation, field.metadata), _default(field), meaning)


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    default = field.get_default(call_default_factory=True)
    return "unset" if default is None else toml_value(default)


_NAMES = {int: "integer", float: "number", str: "text", bool: "true or false"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _type(annotation: Any, metadata: Any = ()) -> str:
    """What a key takes, in words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0], args[1:])
    if origin is Literal:
        text = ", ".join(map(toml_value, args))
    elif origin is tuple:
        number = "" if args[-1] is Ellipsis else f"{len(args)} values, each "
        text = f"list: {number}{_type(args[0])}"
    elif origin is dict:
        text = f"table from names to {_type(args[1])}"
    elif args:
        text = " or ".join(_type(arg) for arg in args if arg is not type(None))
    else:
        text = _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return ", ".join([text, *_bounds(metadata)])


def _bounds(metadata: Any) -> Iterator[str]:
    for limits in metadata:
        if isinstance(limits, Limits):
            bounds = ((words, getattr(limits, name)) for name, words in _BOUNDS.items())
            # Upper bounds beyond that only catch typing errors.
            yield from (f"{words} {bound:g}" for words, bound in bounds if bound is not None and abs(bound) < 2**15)

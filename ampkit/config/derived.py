"""Recipe sections derived from signatures: names, types, bounds and defaults of the keys are written once, there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import Field, create_model

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
) -> type[Section]:
    """A section `name` with a key for each parameter of `source`, a function or class, not in `exclude`.

    A key has its parameter's annotation and default. `Annotated` bounds (`base.limits`) are checked; a plain int is at
    least 1, a float finite; of a union with a sequence the sequence is taken, of `float | Tensor` the float.
    defaults: for keys whose default in a recipe differs. constants: attributes of the section that are no keys. base:
    keys that the section has besides.
    """
    target: Any = source.__init__ if inspect.isclass(source) else source
    hints, given = get_type_hints(target, include_extras=True), defaults or {}
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for key, parameter in inspect.signature(source).parameters.items():
        if key in exclude or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = given.get(key, parameter.default)
        fields[key] = field_type(hints[key]), ... if default is parameter.empty else default
    made = create_model(name, __base__=base, __doc__=inspect.getdoc(source), **fields)
    for key, value in (constants or {}).items():
        setattr(made, key, value)
    return made


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
    members = sorted(members, key=lambda each: not _is_sequence(each))
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

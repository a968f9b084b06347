"""Checks of state dicts before `load_state_dict` assigns them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..base.errors import ArgumentError


def need_keys(where: str, state: Any, keys: Iterable[str], exactly: bool = False) -> None:
    """Raise ArgumentError unless `state` is a dict with these keys, and, with `exactly`, no others."""
    if not isinstance(state, Mapping):
        raise ArgumentError(where, "the dict of state_dict()", _short(state))
    if missing := [key for key in keys if key not in state]:
        raise ArgumentError(where, "the whole state", f"one without {', '.join(missing)}")
    if exactly and (foreign := [key for key in state if key not in keys]):
        raise ArgumentError(where, f"a state of {', '.join(keys)} alone", f"one with {', '.join(map(str, foreign))}")


def need_count(where: str, name: str, value: Any, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return `value` if it is an int in [least, most], else raise ArgumentError."""
    if type(value) is not int or not least <= value <= most:
        raise ArgumentError(where, f"{name} as an integer from {least} to {most}", _short(value))
    return value


def need_like(where: str, name: str, value: Any, like: Any, finite: bool = True) -> None:
    """Raise ArgumentError unless `value` has the type and structure of `like`.

    If `like` is a number: any number but NaN and, with `finite`, infinity. If it is a list or tuple: one of the same
    length whose items match item by item. Otherwise: a value of the same type.
    """
    if isinstance(like, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(like):
            raise ArgumentError(where, f"{name} as a list of {len(like)}", _short(value))
        for each, form in zip(value, like, strict=True):
            need_like(where, name, each, form, finite)
    elif type(like) in (int, float):
        if not is_number(value, finite):
            raise ArgumentError(where, f"{name} as a {'finite ' if finite else ''}number", _short(value))
    elif type(value) is not type(like):
        raise ArgumentError(where, f"{name} as {_kind(like)}", _short(value))


def is_number(value: Any, finite: bool = True) -> bool:
    """Whether `value` is an int or float in the range of float64, not NaN and, with `finite`, not infinite."""
    if type(value) is int:
        return abs(value) < 2**1023
    return type(value) is float and not math.isnan(value) and not (finite and math.isinf(value))


@contextmanager
def unchanged_on_error(*objects: Any) -> Iterator[None]:
    """Context manager: if the block raises, restore the attributes of `objects` and re-raise."""
    before = [dict(vars(each)) for each in objects]
    try:
        yield
    except BaseException:
        for each, attributes in zip(objects, before, strict=True):
            vars(each).clear()
            vars(each).update(attributes)
        raise


def _kind(value: Any) -> str:
    return {bool: "True or False", str: "a string", type(None): "None"}.get(type(value), f"a {type(value).__name__}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"

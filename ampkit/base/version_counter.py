"""Version: when the values of some memory last changed, and what was made of them since then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class VersionCounter(list[int]):
    """One number, set to a later one with every change in place, shared by all that look at the memory.

    A second entry says that something unseen may write to it (see Tensor.exposed): nothing is kept then. derived: what
    `derived_value` keeps.
    """

    __slots__ = ("derived",)
    derived: dict[Any, tuple[int, Any, Any]]


def derived_value(version: Any, array: Any, key: Any, make: Callable[[], Any]) -> Any:
    """What `make` gives for `array`, values of `version`: made once under `key`, and kept until they change.

    None for what is not worth keeping: results of ops, whose versions are plain lists, and what is asked for the first
    time, since most training steps ask once.
    """
    if type(version) is not VersionCounter or len(version) != 1:
        return None
    try:
        derived = version.derived
    except AttributeError:
        derived = version.derived = {}
    at, held, made = derived.get(key, (-1, None, None))
    again = at == version[0] and held is array
    if made is None or not again:
        made = make() if again else None
        derived[key] = version[0], array, made
    return made

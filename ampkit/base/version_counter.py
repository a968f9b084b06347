"""Version counters of array memory, and a cache of values derived from it (such as packed weights)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class VersionCounter(list[int]):
    """The time of the last in-place change of some memory, in a list that all tensors over the memory share.

    A second entry says that other code may write to the memory without notice (see Tensor.exposed): nothing is cached
    then. It is 0 for the memory of an array that a Parameter was made of, which an optimizer moves to its own.
    derived: the cache of `derived_value`. left: the version that a tensor left the memory with, for another one's, and
    the one after that; None once it is back.
    """

    __slots__ = ("_left", "derived")
    derived: dict[Any, tuple[int, Any, Any]]

    @property
    def left(self) -> tuple[int, int] | None:
        """See the class."""
        return getattr(self, "_left", None)

    @left.setter
    def left(self, value: tuple[int, int] | None) -> None:
        self._left = value


def leave(version: list[int], now: int) -> None:
    """Note that a tensor leaves the memory of this counter: a backward through its values raises meanwhile."""
    if isinstance(version, VersionCounter):
        before = version.left[0] if version.left is not None and version.left[1] == version[0] else version[0]
        version.left = before, now
    version[0] = now


def come_back(version: list[int]) -> None:
    """Note that a tensor holds the memory of this counter again: if it did not change, it has the version it had."""
    if isinstance(version, VersionCounter) and version.left is not None:
        if version.left[1] == version[0]:
            version[0] = version.left[0]
        version.left = None


def derived_value(version: Any, array: Any, key: Any, make: Callable[[], Any]) -> Any:
    """The value that `make` derives from `array`, cached under `key` until `version` advances; None if not cached.

    Results of ops, whose versions are plain lists, are not cached. Nor is the first request after a change: most
    training steps read a weight once between two updates.
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

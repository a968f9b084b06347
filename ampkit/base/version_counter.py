"""Version counters of array memory, and a cache of values derived from it (such as packed weights)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

Elements = tuple[int, tuple[int, ...], tuple[int, ...], int]
_WORK: Any = 1000  # the steps in which NumPy looks for an element of both; without an answer by then they overlap


class VersionCounter(list[int]):
    """The time of the last in-place change of some memory, in a list that all tensors over the memory share.

    A second entry says that other code may write to the memory without notice (see Tensor.exposed): nothing is cached
    then. It is 0 for the memory of an array that a Parameter was made of, which an optimizer moves to its own.
    derived: the cache of `derived_value`. left: the version that a tensor left the memory with, for another one's, and
    the one after that; None once it is back. parts: the last changes of parts of the memory, in their order: the
    versions before and after, and which elements (see `elements`).
    """

    __slots__ = ("_left", "_parts", "derived")
    derived: dict[Any, tuple[int, Any, Any]]

    @property
    def left(self) -> tuple[int, int] | None:
        """See the class."""
        return getattr(self, "_left", None)

    @left.setter
    def left(self, value: tuple[int, int] | None) -> None:
        self._left = value

    @property
    def parts(self) -> deque[tuple[int, int, Elements]]:
        """See the class."""
        found: deque[tuple[int, int, Elements]] | None = getattr(self, "_parts", None)
        if found is None:
            found = deque(maxlen=256)  # a backward through older values raises
            self._parts = found
        return found


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


def part_changed(version: list[int], now: int, array: Any) -> None:
    """Advance to `now`, and note that only the elements of `array` changed: a part of the counter's memory."""
    if isinstance(version, VersionCounter) and (where := elements(array)) is not None:
        version.parts.append((version[0], now, where))
    version[0] = now


def is_unchanged(array: Any, version: Sequence[int], since: int) -> bool:
    """Whether all changes of the counter's memory after time `since` are known to have left `array` as it was."""
    now, held = version[0], elements(array)
    if held is None or not isinstance(version, VersionCounter):
        return now <= since
    for before, after, where in reversed(version.parts):
        if now <= since or after != now or np.may_share_memory(_stand_in(held), _stand_in(where), _WORK):
            break
        now = before
    return now <= since


def elements(array: Any) -> Elements | None:
    """Which elements of memory an array shows: address, shape, strides and bytes of one; None if it has no address.

    They are kept instead of the array, which would keep the memory from being freed.
    """
    if isinstance(array, np.ndarray):
        start = array.__array_interface__["data"][0]
    else:
        start = getattr(getattr(array, "data", None), "ptr", None)
    return None if start is None else (int(start), array.shape, array.strides, array.itemsize)


def _stand_in(where: Elements) -> Any:
    # An array of bytes in the same place, on whichever device, for NumPy to compare addresses; it is never read.
    start, shape, strides, size = where
    layout = {"shape": (*shape, size), "strides": (*strides, 1), "typestr": "|u1", "data": (start, True), "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=layout))


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

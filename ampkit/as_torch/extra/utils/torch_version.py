"""`torch.torch_version`: a version that also compares with tuples of numbers."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["TorchVersion"]

_VERSION = re.compile(r"\s*v?(\d+(?:\.\d+)*)(?:[-_.]?(a|b|c|rc|alpha|beta|dev)[-_.]?(\d*))?[^+]*(\+.*)?", re.IGNORECASE)


class TorchVersion(str):
    """A text that compares as a version, with texts and tuples of numbers: `torch.__version__ >= (2, 1)`.

    One before a release (2.1.0a0, 2.1.0rc1) is smaller than it, one with a local part (2.1.0+cpu) larger. A text that
    is no version is compared as text.
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        mine, theirs = _keys(self, other)
        return mine == theirs

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        mine, theirs = _keys(self, other)
        return bool(mine < theirs)

    def __gt__(self, other: Any) -> bool:
        mine, theirs = _keys(self, other)
        return bool(mine > theirs)

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other


def _keys(version: str, other: Any) -> tuple[Any, Any]:
    """What the two compare by."""
    text = ".".join(map(str, other)) if isinstance(other, (tuple, list)) else str(other)
    mine, theirs = _key(version), _key(text)
    return (mine, theirs) if mine is not None and theirs is not None else (str.__str__(version), text)


def _key(text: str) -> tuple[Any, ...] | None:
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    numbers, stage, count, local = found.groups()
    release = [int(number) for number in numbers.split(".")]
    while release and release[-1] == 0:
        release.pop()
    before = ("", 0) if stage is None else (stage.lower(), int(count or 0))
    order = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "c": 3, "rc": 3, "": 4}
    return tuple(release), order[before[0]], before[1], local or ""

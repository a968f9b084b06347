"""Keys of `torch.utils._pytree`: how a child is reached from its container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["GetAttrKey", "KeyEntry", "KeyPath", "MappingKey", "SequenceKey", "key_get", "keystr"]


class KeyEntry(Protocol):
    """A key of one container."""

    def get(self, parent: Any) -> Any:
        """The child of `parent` by this key."""


@dataclass(frozen=True)
class SequenceKey:
    """An index of a list or tuple."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Any) -> Any:
        """The element."""
        return sequence[self.idx]


@dataclass(frozen=True)
class MappingKey:
    """A key of a dict."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        """The value."""
        return mapping[self.key]


@dataclass(frozen=True)
class GetAttrKey:
    """An attribute of a named tuple or data class."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: Any) -> Any:
        """The attribute."""
        return getattr(obj, self.name)


KeyPath = tuple[KeyEntry, ...]


def keystr(kp: Sequence[Any]) -> str:
    """A path as text, `['a'][0].b`."""
    return "".join(map(str, kp))


def key_get(obj: Any, kp: Sequence[Any]) -> Any:
    """What stands at a path."""
    for key in kp:
        obj = key.get(obj)
    return obj

"""`torch.serialization`: `load` reads no code, so that nothing has to be allowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ... import serialization

__all__ = [
    "FILE_LIKE", "MAP_LOCATION", "add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "safe_globals",
    "save",
]  # fmt: skip

FILE_LIKE = MAP_LOCATION = Any  # for annotations

load, save = serialization.load, serialization.save


def add_safe_globals(safe_globals: Any) -> None:
    """Does nothing: `load` makes tensors and plain containers, and calls no code of the file."""


def clear_safe_globals() -> None:
    """Does nothing."""


def get_safe_globals() -> list[Any]:
    """An empty list."""
    return []


@contextmanager
def safe_globals(safe_globals: Any) -> Iterator[None]:
    """A context that changes nothing."""
    yield

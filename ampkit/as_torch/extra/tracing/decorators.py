"""Decorators that change nothing, in the place of those that tell a compiler or an exporter something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def same(obj: Any = None, *args: Any, **options: Any) -> Any:
    """`obj` as it is; without one, a decorator that returns what it decorates."""
    return obj if obj is not None else lambda found: found


def same_with(*args: Any, **options: Any) -> Callable[[Any], Any]:
    """A decorator that returns what it decorates, whatever it was made with."""
    return lambda found: found

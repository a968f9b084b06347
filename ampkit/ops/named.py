"""`named`: the name and docstring of a function that is made in a loop or by another function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def named(name: str, doc: str, module: str | None = None) -> Callable[[Any], Any]:
    """Decorate a function to give it a name, a docstring, and a module other than the one it is written in."""

    def rename(function: Any) -> Any:
        function.__name__ = function.__qualname__ = name
        function.__doc__, function.__module__ = doc, module or function.__module__
        return function

    return rename

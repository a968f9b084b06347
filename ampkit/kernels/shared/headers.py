"""The names that functions.h, reductions.h and optimizers.h define. The tables of both backends follow from them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def functions() -> tuple[str, ...]:
    """The functions that have gradients."""
    return _names("functions.h", "FUNCTION(?:_SHORT|_LOOPING)?")


@cache
def functions_without_gradient() -> tuple[str, ...]:
    """The functions that have none."""
    return _names("functions.h", "FUNCTION_NO_GRAD(?:_LOOPING)?")


@cache
def rules() -> tuple[str, ...]:
    """The rules of optimizers, by the names of their classes."""
    return _names("optimizers.h", "RULE")


@cache
def terms() -> tuple[str, ...]:
    """The terms of reductions."""
    return _names("reductions.h", "(?:WIDE_)?TERM")


def _names(header: str, macro: str) -> tuple[str, ...]:
    return tuple(re.findall(rf"^{macro}\((\w+),", (_FOLDER / header).read_text(), re.M))

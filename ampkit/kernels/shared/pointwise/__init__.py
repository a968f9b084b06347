"""The pointwise ops as functions of functions.h: a table, and ops whose operands take preparation."""

from __future__ import annotations

from typing import Any

from ampkit.ops.pointwise.formats import decode, encode

from ..launcher import Launcher
from ..registration import on
from .prepared import register_prepared
from .table import register_table


def register_pointwise(launcher: Launcher) -> None:
    """Register the pointwise ops on the launcher's backend."""
    register_table(launcher)
    register_prepared(launcher)


def register_formats(backend: str, formats: Any, decodes: Any, min_elements: int = 0) -> None:
    """Register formats below 16 bits, by `encode`, `encodes` and `decode` of a module, and the predicate `decodes`."""
    fits = lambda values, dtype, *more: formats.encodes(values, dtype)  # noqa: E731
    on(encode, backend, formats.encode, fits, min_elements=min_elements)
    on(decode, backend, formats.decode, decodes, min_elements=min_elements)

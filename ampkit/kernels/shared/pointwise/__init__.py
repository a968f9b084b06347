"""The pointwise ops as functions of functions.h: a table, and ops whose operands take preparation."""

from __future__ import annotations

from ..launcher import Launcher
from .prepared import register_prepared
from .table import register_table


def register_pointwise(launcher: Launcher) -> None:
    """Register the pointwise ops on the launcher's backend."""
    register_table(launcher)
    register_prepared(launcher)

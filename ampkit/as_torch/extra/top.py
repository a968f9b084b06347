"""Names of `torch` that ampkit has elsewhere, or that change no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...amp import is_autocast_available
from ...base.missing_names import PYTORCH_VERSION

__all__ = ["__version__", "compile", "is_autocast_available"]

__version__ = PYTORCH_VERSION


def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`model` as it is: ampkit runs eagerly, and `ampkit.compile` records whole steps."""
    return model if model is not None else lambda found: found

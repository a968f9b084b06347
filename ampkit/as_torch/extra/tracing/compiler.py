"""`torch.compiler`: decorators that change nothing, since Python code runs directly."""

from __future__ import annotations

from typing import Any

from ..top import compile

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "disable", "is_compiling", "is_dynamo_compiling",
    "is_exporting", "mark_dynamic", "mark_static", "mark_static_address", "maybe_mark_dynamic", "reset",
]  # fmt: skip


def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
    """`fn` as it is."""
    return fn if fn is not None else lambda found: found


allow_in_graph = assume_constant_result = disable


def is_compiling() -> bool:
    """False."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def reset() -> None:
    """Does nothing."""


def mark_static(t: Any, *args: Any, **options: Any) -> None:
    """Does nothing."""


mark_static_address = mark_dynamic = maybe_mark_dynamic = mark_static

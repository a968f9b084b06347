"""`torch._guards`: what libraries ask of a trace in progress, of which there never is one."""

from __future__ import annotations

from typing import Any

__all__ = ["CompileContext", "TracingContext", "active_fake_mode", "detect_fake_mode"]


def active_fake_mode() -> None:
    """None: tensors have values."""


def detect_fake_mode(inputs: Any = None) -> None:
    """None: tensors have values."""


class TracingContext:
    """The context of a trace."""

    @staticmethod
    def try_get() -> None:
        """None: Python code runs directly."""


class CompileContext(TracingContext):
    """The context of a compilation."""

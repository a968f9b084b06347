"""Global switches of `torch` that change no result here."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...backends.determinism import are_deterministic_algorithms_enabled
from ...core.random import default as default_generator

__all__ = [
    "default_generator", "get_deterministic_debug_mode", "get_device_module", "get_num_interop_threads",
    "is_deterministic_algorithms_warn_only_enabled", "is_warn_always_enabled", "set_flush_denormal",
    "set_num_interop_threads", "set_warn_always",
]  # fmt: skip


def get_deterministic_debug_mode() -> int:
    """2, errors, where only deterministic algorithms are used; else 0."""
    return 2 if are_deterministic_algorithms_enabled() else 0


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """False: every op has a deterministic algorithm, and nothing warns."""
    return False


def is_warn_always_enabled() -> bool:
    """False."""
    return False


def set_warn_always(b: bool) -> None:
    """Does nothing: ampkit does not warn."""


def set_flush_denormal(mode: bool) -> bool:
    """False: subnormal numbers are kept."""
    return False


def get_num_interop_threads() -> int:
    """1: ops run one after the other."""
    return 1


def set_num_interop_threads(int: int) -> None:
    """Does nothing: ops run one after the other."""


def get_device_module(device: Any = None) -> Any:
    """`torch.cuda` or `torch.cpu`, for a device or its name."""
    return import_module(f"torch.{str(device or 'cpu').partition(':')[0]}")

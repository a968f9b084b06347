"""`torch.cpu`: the functions of `torch.cuda`, for the device that is always there."""

from __future__ import annotations

from typing import Any


def is_available() -> bool:
    """True."""
    return True


def device_count() -> int:
    """1."""
    return 1


def current_device() -> str:
    """The device "cpu"."""
    return "cpu"


def synchronize(device: Any = None) -> None:
    """Does nothing: the CPU's work is done when a call returns."""


set_device = synchronize

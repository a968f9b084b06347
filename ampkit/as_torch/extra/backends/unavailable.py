"""Devices and libraries of PyTorch that ampkit does not use."""

from __future__ import annotations


def is_available() -> bool:
    """Whether ampkit can use it: never."""
    return False


is_built = is_available


def device_count() -> int:
    """The number of such devices: 0."""
    return 0


def manual_seed(seed: int) -> None:
    """Does nothing: there is no such device."""


manual_seed_all = manual_seed


def empty_cache() -> None:
    """Does nothing: there is no such device."""

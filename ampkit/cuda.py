"""The GPUs of this machine: `ampkit.cuda.is_available()`, so that a script that asks first runs without one."""

from __future__ import annotations

from . import backends
from .core.errors import DeviceError

__all__ = [
    "current_device",
    "device_count",
    "empty_cache",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "synchronize",
]


def is_available() -> bool:
    """Whether there is a GPU that tensors can live on."""
    try:
        backends.get("cuda")
    except DeviceError:
        return False
    return True


def device_count() -> int:
    """How many GPUs tensors can live on: none without a backend for them, and with one the first."""
    return int(is_available())


def current_device() -> int:
    """The number of the GPU in use. Raises DeviceError without one."""
    backends.get("cuda")
    return 0


def synchronize(device: object = None) -> None:
    """Wait until the GPU is done. Raises DeviceError without one."""
    backends.get("cuda")


def empty_cache() -> None:
    """Give memory that no tensor holds back to the GPU; without one there is none."""


def manual_seed(seed: int) -> None:
    """Nothing: `ampkit.manual_seed` rules the random numbers of every device."""


manual_seed_all = manual_seed

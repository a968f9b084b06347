"""`torch.accelerator`: the GPU, where ampkit can use one."""

from __future__ import annotations

from typing import Any

from ... import cuda
from ...backends import Device
from ...cuda import device_count, empty_cache, is_available, max_memory_allocated, memory_allocated, memory_reserved

__all__ = [
    "current_accelerator", "current_device_idx", "current_device_index", "device_count", "device_index", "empty_cache",
    "is_available", "max_memory_allocated", "memory_allocated", "memory_reserved", "reset_peak_memory_stats",
    "set_device_idx", "set_device_index", "synchronize",
]  # fmt: skip

current_device_index = current_device_idx = cuda.current_device
set_device_index = set_device_idx = cuda.set_device
device_index = cuda.device
reset_peak_memory_stats = cuda.reset_peak_memory_stats


def current_accelerator(check_available: bool = False) -> Device | None:
    """The device "cuda", or None where ampkit can use no GPU."""
    return Device("cuda") if is_available() else None


def synchronize(device: Any = None) -> None:
    """Wait until the GPU has finished; does nothing without one."""
    if is_available():
        cuda.synchronize(device)

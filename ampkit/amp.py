"""PyTorch's second address of `autocast` and `GradScaler`: `from ampkit.amp import autocast, GradScaler`."""

from . import backends
from .core.errors import DeviceError
from .core.policy import autocast
from .scaler import GradScaler

__all__ = ["GradScaler", "autocast", "is_autocast_available"]


def is_autocast_available(device_type: str) -> bool:
    """Whether `autocast(device_type)` works on this machine."""
    try:
        backends.get(device_type)
    except DeviceError:
        return False
    return True

"""`torch.distributed.rpc`, which PyTorch, too, is built without on some platforms."""

from __future__ import annotations

__all__ = ["is_available"]


def is_available() -> bool:
    """False."""
    return False

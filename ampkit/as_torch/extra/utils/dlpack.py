"""`torch.utils.dlpack`."""

from __future__ import annotations

from typing import Any

from ....core.dlpack import from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Any) -> Any:
    """The tensor as a DLPack capsule."""
    return tensor.__dlpack__()

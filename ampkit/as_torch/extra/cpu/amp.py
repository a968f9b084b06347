"""`torch.cpu.amp`: autocast and GradScaler with PyTorch's older arguments."""

from __future__ import annotations

from typing import Any

from ....amp import GradScaler
from ....core.policy import autocast as _autocast

__all__ = ["GradScaler", "autocast"]


class autocast(_autocast):
    """`torch.amp.autocast("cpu")`: `enabled` first, then `dtype`."""

    def __init__(self, enabled: bool = True, dtype: Any = None, cache_enabled: bool = True):
        super().__init__("cpu", dtype, enabled, cache_enabled)

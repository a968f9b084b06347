"""`torch.cuda.amp`: autocast and GradScaler with PyTorch's older arguments."""

from __future__ import annotations

from typing import Any

from .... import amp
from ....amp import GradScaler
from ....core.policy import autocast as _autocast

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_autocast):
    """`torch.amp.autocast("cuda")`: `enabled` first, then `dtype`."""

    def __init__(self, enabled: bool = True, dtype: Any = None, cache_enabled: bool = True):
        super().__init__("cuda", dtype, enabled, cache_enabled)


def custom_fwd(fwd: Any = None, *, cast_inputs: Any = None) -> Any:
    """`ampkit.amp.custom_fwd` for "cuda"."""
    return amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Any = None) -> Any:
    """`ampkit.amp.custom_bwd` for "cuda"."""
    return amp.custom_bwd(bwd, device_type="cuda")

"""Older names of `torch.cuda`."""

from __future__ import annotations

from ...base.errors import OutOfMemoryError
from ...cuda import reset_peak_memory_stats

__all__ = ["OutOfMemoryError", "is_bf16_supported", "reset_max_memory_allocated"]

reset_max_memory_allocated = reset_peak_memory_stats


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 works on every device."""
    return True

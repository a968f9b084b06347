"""`torch.utils._triton`: kernels are ampkit's own."""

from __future__ import annotations

__all__ = ["has_triton", "has_triton_experimental_host_tma", "has_triton_package", "has_triton_tma"]


def has_triton() -> bool:
    """False."""
    return False


has_triton_package = has_triton_tma = has_triton_experimental_host_tma = has_triton

"""`torch._C._functorch`: what libraries ask of tensors within PyTorch's transforms, which none of ampkit's are."""

from __future__ import annotations

from typing import Any

__all__ = ["is_batchedtensor", "is_functorch_wrapped_tensor", "is_gradtrackingtensor", "is_legacy_batchedtensor"]


def is_batchedtensor(tensor: Any) -> bool:
    """False: what transforms wrap are arrays below the tensors."""
    return False


is_functorch_wrapped_tensor = is_gradtrackingtensor = is_legacy_batchedtensor = is_batchedtensor

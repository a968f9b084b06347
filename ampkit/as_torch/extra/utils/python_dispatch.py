"""What libraries ask of `torch.utils._python_dispatch`: whether a tensor is made of others. None of ampkit's is."""

from __future__ import annotations

from typing import Any

__all__ = ["is_traceable_wrapper_subclass", "is_traceable_wrapper_subclass_type"]


def is_traceable_wrapper_subclass(t: Any) -> bool:
    """False: no tensor of ampkit holds its values in other tensors."""
    return False


def is_traceable_wrapper_subclass_type(t: type) -> bool:
    """False, of every class."""
    return False

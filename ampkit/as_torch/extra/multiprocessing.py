"""`torch.multiprocessing`: Python's, whose processes get copies of tensors."""

from __future__ import annotations

__all__ = ["get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy"]


def get_all_sharing_strategies() -> set[str]:
    """{"file_system"}."""
    return {"file_system"}


def get_sharing_strategy() -> str:
    """ "file_system"."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Does nothing: tensors are copied to other processes."""

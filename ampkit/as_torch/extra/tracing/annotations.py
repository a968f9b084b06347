"""`torch.jit.annotations`: types for annotations, which nothing reads."""

from __future__ import annotations

from typing import Any

__all__ = [f"BroadcastingList{n}" for n in range(1, 7)]


class _BroadcastingList:
    """`BroadcastingList2[int]`: a number, or a list of as many."""

    def __getitem__(self, item: Any) -> Any:
        return item | tuple[item, ...] | list[item]


globals().update(dict.fromkeys(__all__, _BroadcastingList()))

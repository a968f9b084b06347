"""PyTorch's address of `DistributedDataParallel`, which is loaded when it is asked for."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DistributedDataParallel":
        from ..distributed.data_parallel import DistributedDataParallel

        return DistributedDataParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""`torch.nn.parallel.scatter_gather`: a batch for one device, which is all that one process drives."""

from __future__ import annotations

from typing import Any

from ....base.errors import DeviceError
from ....core.nested import tensors_in, with_tensors

__all__ = ["gather", "scatter", "scatter_kwargs"]


def scatter(inputs: Any, target_gpus: Any, dim: int = 0) -> Any:
    """The inputs on the one device that is given, as the only one of a tuple. Raises DeviceError for several."""
    if len(target_gpus) != 1:
        got = f"{len(target_gpus)}"
        raise DeviceError(
            "scatter", "one device, which a process drives", got, "DistributedDataParallel: ampkit launch"
        )
    device = target_gpus[0]
    moved = iter([each.to(f"cuda:{device}" if isinstance(device, int) else device) for each in tensors_in(inputs)])
    return (with_tensors(inputs, moved),)


def scatter_kwargs(inputs: Any, kwargs: Any, target_gpus: Any, dim: int = 0) -> tuple[Any, Any]:
    """`scatter` of positional arguments and of those by keyword."""
    return scatter(inputs, target_gpus, dim), scatter(kwargs or {}, target_gpus, dim)


def gather(outputs: Any, target_device: Any, dim: int = 0) -> Any:
    """The output of the one device. Raises DeviceError for several."""
    if len(outputs) != 1:
        raise DeviceError("gather", "the output of one device", f"{len(outputs)}")
    return outputs[0]

"""GPUs and their memory, with the names of torch.cuda; `ampkit.cuda.is_available()` is False without a GPU.

Memory figures are bytes of CuPy's memory pool plus the private pools of recorded steps.
"""

from __future__ import annotations

import gc
from typing import Any

from . import backends
from .base.errors import DeviceError
from .core.parameter import Parameter
from .core.tensor import Tensor
from .core.tensor_factory import BY_NAME, KINDS
from .optim.flat.arena import Arena

__all__ = [
    "current_device", "device", "device_count", "empty_cache", "get_device_capability", "get_device_name",
    "is_available", "manual_seed", "manual_seed_all", "max_memory_allocated", "memory_allocated", "memory_reserved",
    "reset_peak_memory_stats", "set_device", "synchronize", *(f"{kind}Tensor" for kind in KINDS),
]  # fmt: skip


globals().update({kind.name.rpartition(".")[2]: kind for kind in BY_NAME.values() if kind.device == "cuda"})


def is_available() -> bool:
    """Whether ampkit can use a GPU."""
    try:
        backends.get("cuda")
    except DeviceError:
        return False
    return True


def _gpu(device: Any = None) -> Any:
    """The backend of a GPU: "cuda:1", 1, or None for the current one, as in PyTorch."""
    found = backends.get("cuda" if device is None else device)
    if found.name != "cuda":
        raise DeviceError("ampkit.cuda", "'cuda', 'cuda:<index>' or a number", repr(device))
    return found


def device_count() -> int:
    """The number of GPUs; 0 if ampkit can use none."""
    return int(_gpu().xp.cuda.runtime.getDeviceCount()) if is_available() else 0


def current_device() -> int:
    """The number of the GPU that "cuda" means in this thread. Raises DeviceError without one."""
    return int(_gpu().index)


def set_device(device: Any) -> None:
    """Make a GPU, "cuda:1" or 1, the one that "cuda" means in this thread; it is CuPy's current device too.

    Tensors know where they are, and need no current device. Set it where another GPU is full, before it is asked for:
    CUDA takes some memory of every device that has been the current one.
    Raises DeviceError for a GPU that this machine does not have.
    """
    _make_current(_gpu(device))


def _make_current(gpu: Any) -> Any:
    return None if gpu.gpus is None else gpu.gpus.use(gpu.index)


class device:
    """Context manager: "cuda" means the GPU `device`, "cuda:1" or 1, inside; None and negative numbers change nothing.

    Raises DeviceError for a GPU that this machine does not have.
    """

    def __init__(self, device: Any):
        ignored = device is None or (isinstance(device, int) and device < 0)
        self._gpu = None if ignored else _gpu(device)
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before.append(None if self._gpu is None else _make_current(self._gpu))

    def __exit__(self, *error: Any) -> None:
        before = self._before.pop()
        if before is not None and self._gpu is not None:
            self._gpu.gpus.leave(before)


def get_device_name(device: Any = None) -> str:
    """The GPU's name, as NVIDIA sells it. Raises DeviceError without one."""
    return str(_properties(device)["name"].decode())


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The GPU's compute capability: (9, 0) for an H100. Raises DeviceError without one."""
    about = _properties(device)
    return int(about["major"]), int(about["minor"])


def _properties(device: Any) -> Any:
    gpu = _gpu(device)
    return gpu.xp.cuda.runtime.getDeviceProperties(gpu.index)


def synchronize(device: Any = None) -> None:
    """Wait until the GPU has finished; deferred errors, such as a label out of range, are raised here.

    Raises DeviceError without a GPU.
    """
    _gpu(device).synchronize()


def empty_cache() -> None:
    """Return unused memory of the pools to all GPUs; does nothing without one."""
    for gpu in () if not is_available() else backends.gpus.known() if backends.gpus is not None else (_gpu(),):
        gpu.usage.free()


def memory_allocated(device: Any = None) -> int:
    """Bytes of the arrays on the GPU; 0 without one."""
    return int(_gpu(device).usage.used()) if is_available() else 0


def memory_reserved(device: Any = None) -> int:
    """Bytes that the memory pool holds, free blocks included; 0 without a GPU."""
    return int(_gpu(device).usage.reserved()) if is_available() else 0


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that arrays held since `reset_peak_memory_stats`; 0 without a GPU.

    Nobody looks before its first call, and this is what the pool holds, which is no less.
    """
    return int(_gpu(device).usage.peak()) if is_available() else 0


def reset_peak_memory_stats(device: Any = None) -> None:
    """Track the peak of this thread's allocations from now on; costs a microsecond per allocation."""
    if is_available():
        _gpu(device).usage.watch()


def manual_seed(seed: int) -> None:
    """Does nothing: `ampkit.manual_seed` seeds the random numbers of every device."""


manual_seed_all = manual_seed


# who holds memory, for the error when there is no more


def _held(device: str) -> dict[str, int]:
    """Bytes on `device` of parameters (masters and 16-bit copies), of gradients, and of optimizers' moments."""
    found: dict[str, dict[int, Any]] = {"parameters": {}, "gradients": {}, "optimizer": {}}
    for item in gc.get_objects():
        kind = type(item)  # a proxy's __class__ may be anything
        if issubclass(kind, Arena):
            arrays = [item.master, *item.copies.values()], [item.gradient], item.moment_arrays()
        elif issubclass(kind, Parameter) and item._arena_segment is None:
            arrays = _of_parameter(item)
        else:
            continue
        for by_id, group in zip(found.values(), arrays, strict=True):
            by_id.update({id(a): a for a in group if backends.backend_of(a).device_of(a) == device})
    return {name: sum(int(a.nbytes) for a in by_id.values()) for name, by_id in found.items()}


def _of_parameter(parameter: Parameter) -> tuple[list[Any], list[Any], list[Any]]:
    copies = [copy for _, copy in (parameter._cast_copies or {}).values()]
    gradient: Tensor | None = parameter._grad
    return [parameter.array, *copies], [] if gradient is None else [gradient.array], []


backends.memory_reports.append(_held)

"""`torch.distributed.rpc`: the functions and classes of a script are those that others may call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from ....base.errors import ArgumentError
from ....distributed import rpc

__all__ = ["BackendType", "PyRRef", "TensorPipeRpcBackendOptions", "_require_initialized", "init_rpc", "is_available"]

PyRRef = rpc.RRef


class BackendType(Enum):
    """PyTorch's engines of calls; here they go by TCP, and this has no effect."""

    TENSORPIPE = "tensorpipe"


class TensorPipeRpcBackendOptions(rpc.RpcBackendOptions):
    """rpc.RpcBackendOptions with PyTorch's arguments. Tensors of a GPU arrive on the one that is current there."""

    def __init__(
        self, *, num_worker_threads: int = 16, rpc_timeout: float = 60.0, init_method: str = "env://",
        device_maps: Any = None, devices: Any = None, _transports: Any = None, _channels: Any = None,
    ):  # fmt: skip
        super().__init__(rpc_timeout, init_method, num_worker_threads)
        if device_maps or devices:
            self.set_device_map("", device_maps or devices)

    def set_device_map(self, to: str, device_map: Any) -> None:
        """Refused: each process uses the GPU that is current in it."""
        cure = "torch.cuda.set_device(n)"
        raise ArgumentError("TensorPipeRpcBackendOptions", "no device maps", repr(device_map), cure)

    set_devices = set_device_map


def is_available() -> bool:
    """True."""
    return True


def _require_initialized(function: Any) -> Any:
    """`function`: what it calls raises before init_rpc. Libraries decorate theirs."""
    return function


def init_rpc(
    name: str, backend: Any = None, rank: int = -1, world_size: int | None = None, rpc_backend_options: Any = None
) -> None:
    """rpc.init_rpc, where others may call all that the script and the modules of its folder define."""
    rpc.init_rpc(name, backend, rank, world_size, rpc_backend_options, functions=_own_modules())


def _own_modules() -> Iterator[ModuleType]:
    """The script, and what it has imported from its folder or below, but for installed packages."""
    main = sys.modules["__main__"]
    yield main
    if (path := getattr(main, "__file__", None)) is None:
        return
    folder, installed = Path(path).resolve().parent, {"site-packages", "dist-packages", "lib"}
    for module in list(sys.modules.values()):
        found = vars(module).get("__file__") if isinstance(module, ModuleType) and module is not main else None
        place = Path(found) if isinstance(found, str) else None
        if place and place.is_relative_to(folder) and not installed & set(place.relative_to(folder).parts):
            yield module

"""Names of `torch.distributed` that say what there is, and those that libraries look up and one process never uses."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from ....distributed import ReduceOp, is_mpi_available
from ...refused import refused
from .constants import default_pg_timeout

__all__ = [
    "Backend", "default_pg_timeout", "get_backend_config", "get_default_backend_for_device", "is_backend_available",
    "is_gloo_available", "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available",
    "reduce_op",
]  # fmt: skip

reduce_op = ReduceOp
_REFUSED = [
    "FileStore", "GradBucket", "HashStore", "P2POp", "PrefixStore", "Store", "TCPStore", "batch_isend_irecv",
    "monitored_barrier", "new_subgroups", "new_subgroups_by_enumeration", "rendezvous",
]  # fmt: skip
_CURE = "torchrun or mpiexec starts the processes, and ampkit.distributed has their collectives (docs/distributed.md)"
globals().update({name: refused(f"torch.distributed.{name}", _CURE) for name in _REFUSED})
__all__ += _REFUSED


class Backend(str):
    """The name of an engine, in small letters; MPI or sockets carry "gloo", and NCCL comes by its own name."""

    UNDEFINED, GLOO, NCCL, UCC, MPI, XCCL = "undefined", "gloo", "nccl", "ucc", "mpi", "xccl"
    backend_list: ClassVar[list[str]] = [UNDEFINED, GLOO, NCCL, XCCL, UCC, MPI]
    default_device_backend_map: ClassVar[dict[str, str]] = {"cpu": MPI, "cuda": NCCL}
    register_backend = refused("torch.distributed.Backend.register_backend", _CURE)

    def __new__(cls, name: str) -> Backend:
        return str.__new__(cls, name.lower())


def is_nccl_available() -> bool:
    """Whether NCCL carries collectives: not yet, MPI does."""
    return False


def is_torchelastic_launched() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_gloo_available() -> bool:
    """True: MPI or sockets carry what PyTorch sends by gloo."""
    return True


def get_default_backend_for_device(device: Any) -> str:
    """The engine of a device: "nccl" for a GPU, else "mpi"."""
    return "nccl" if str(device).startswith("cuda") else "mpi"


def is_ucc_available() -> bool:
    """False."""
    return False


is_xccl_available = is_ucc_available


def is_backend_available(backend: str) -> bool:
    """Whether an engine can be used."""
    return backend.lower() == "gloo" or (backend.lower() == "mpi" and is_mpi_available())


def get_backend_config(group: Any = None) -> str:
    """The engine of each kind of device."""
    return ",".join(f"{device}:{name}" for device, name in Backend.default_device_backend_map.items())

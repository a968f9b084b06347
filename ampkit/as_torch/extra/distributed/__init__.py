"""Names of `torch.distributed` that say what there is."""

from __future__ import annotations

from typing import Any

from ....distributed import is_mpi_available

__all__ = ["get_default_backend_for_device", "is_gloo_available", "is_nccl_available", "is_torchelastic_launched"]

is_gloo_available = is_mpi_available


def is_nccl_available() -> bool:
    """Whether NCCL carries collectives: not yet, MPI does."""
    return False


def is_torchelastic_launched() -> bool:
    """False: mpiexec launches."""
    return False


def get_default_backend_for_device(device: Any) -> str:
    """The engine of a device: "nccl" for a GPU, else "mpi"."""
    return "nccl" if str(device).startswith("cuda") else "mpi"

"""Names of `torch.distributed` that say what there is."""

from __future__ import annotations

from ...distributed import is_mpi_available

__all__ = ["is_gloo_available", "is_nccl_available", "is_torchelastic_launched"]

is_gloo_available = is_mpi_available


def is_nccl_available() -> bool:
    """Whether NCCL carries collectives: not yet, MPI does."""
    return False


def is_torchelastic_launched() -> bool:
    """False: mpiexec launches."""
    return False

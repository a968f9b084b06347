"""Many processes: groups of them and their collectives, by PyTorch's names, on MPI, sockets or NCCL.

    import ampkit.distributed as dist

    dist.init_process_group()            # under torchrun, mpiexec, srun, or `ampkit launch -n 4 script.py`
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)

It can be imported where no engine is installed, and one process needs none.
"""

from .collectives import *
from .collectives import __all__ as _collectives
from .deterministic import DeterministicDataParallel
from .device_mesh import DeviceMesh, init_device_mesh
from .environment import launched as launched
from .fsdp import MixedPrecisionPolicy, fully_shard
from .optim import ZeroRedundancyOptimizer
from .process_group import ProcessGroup, Work
from .reduction import ReduceOp
from .transport import DistError
from .world import (
    NON_MEMBER,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_initialized,
    is_mpi_available,
    new_group,
)


class GroupMember:
    """`NON_GROUP_MEMBER` is what new_group returns on processes outside of the group; PyTorch's name."""

    NON_GROUP_MEMBER = NON_MEMBER


__all__ = [
    "DeterministicDataParallel", "DeviceMesh", "DistError", "GroupMember", "MixedPrecisionPolicy", "ProcessGroup",
    "ReduceOp", "Work", "ZeroRedundancyOptimizer", "destroy_process_group", "fully_shard", "get_backend",
    "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size", "group",
    "init_device_mesh", "init_process_group", "is_available", "is_initialized", "is_mpi_available", "new_group",
    *_collectives,
]  # fmt: skip

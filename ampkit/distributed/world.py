"""All processes as one group: how it is made from what the launcher says, and the groups of some of them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..base.errors import ArgumentError, StateError
from . import mpi, resilient, startup
from .environment import BY_MACHINE, CURES, Launched, knows_mpi, launched, meeting_point
from .nccl import NCCLTransport
from .process_group import ProcessGroup
from .resilient import ResilientTransport
from .sockets import transport as sockets
from .sockets.rendezvous import Meeting, key_of
from .transport import Call, Transport, call_site

TIMEOUT = timedelta(minutes=30)
ENGINES = {"mpi", "sockets", "gloo", "nccl"}  # also PyTorch's backends; by device in PyTorch's "cpu:gloo,cuda:nccl"
_MPIEXEC = "start it with `mpiexec -n 2 python script.py`"


class group:
    """`group.WORLD` is the group of all processes, or None before init_process_group; PyTorch's name."""

    WORLD: ProcessGroup | None = None


_groups: list[ProcessGroup] = []
_engine = ""


def is_available() -> bool:
    """Whether there is an ampkit.distributed: always."""
    return True


def is_mpi_available() -> bool:
    """Whether mpi4py and an MPI library can be loaded."""
    return startup.is_available()


def is_initialized() -> bool:
    """Whether init_process_group was called."""
    return group.WORLD is not None


def init_process_group(
    backend: str | None = None, init_method: str | None = None, timeout: Any = None, world_size: int = -1,
    rank: int = -1, store: Any = None, group_name: str = "", pg_options: Any = None, device_id: Any = None,
) -> None:  # fmt: skip
    """Connect all processes that the launcher started: afterwards they call collectives together.

    backend: "nccl", the default: arrays in the host's memory go by MPI or sockets, those on a GPU by NCCL, which is
    loaded when the first one comes, and connects a GPU per rank. "gloo": those on a GPU pass through the host's memory.
    With both MPI connects the processes where its launcher has started them, TCP elsewhere; "mpi" and "sockets" choose
    one. By device as in PyTorch: "cpu:sockets,cuda:nccl". A process that was started alone is rank 0 of 1.
    init_method: "env://", the default: ranks meet at MASTER_ADDR and MASTER_PORT, under srun at the step's first
    machine; "tcp://host:port". AMPKIT_RENDEZVOUS_TOKEN: a secret that all ranks have, which keeps others out.
    rank, world_size: this process's number and how many there are, where no launcher says so; by MPI they are checked.
    timeout: a timedelta or seconds, 30 minutes by default, within which every rank must come to a collective.
    store, group_name, pg_options and device_id have no effect.
    Raises StateError where it was called already, or an engine or the meeting point is missing; ArgumentError for an
    unknown backend; DistError for ranks that do not come in time.
    """
    global _engine
    if group.WORLD is not None:
        raise StateError("init_process_group", "to be called once", "a second call", "destroy_process_group() first")
    names = [part.rpartition(":")[2].lower() for part in (backend or "nccl").split(",")]
    if not set(names) <= ENGINES:
        raise ArgumentError("init_process_group", "backend mpi, sockets, gloo or nccl", repr(backend))
    limit, found = _seconds(timeout), launched()
    if _by_mpi(names, found, world_size):
        transport: Transport = (resilient.connect if resilient.is_enabled() else mpi.connect)(limit)
        _need_as_launched(transport, found, rank, world_size)
        host = "mpi"
    else:
        transport = _socket_transport(found, limit, init_method, rank, world_size)
        host = "sockets" if transport.size > 1 or "sockets" in names else "mpi"
    _engine = "nccl" if "nccl" in names else host
    group.WORLD = _group_of(range(transport.size), transport)
    _groups.append(group.WORLD)


def _by_mpi(names: Sequence[str], found: Launched, world_size: int) -> bool:
    """Whether MPI is to connect the processes."""
    alone = found.world_size == 1 and found.launcher in ("", "SLURM", *BY_MACHINE) and world_size in (-1, 1)
    if alone or "mpi" in names or "sockets" in names:
        return "mpi" in names and not alone
    return knows_mpi(found.launcher) and (found.launcher != "SLURM" or is_mpi_available())


def _need_as_launched(transport: Transport, found: Launched, rank: int, world_size: int) -> None:
    for name, given, real in (("world_size", world_size, transport.size), ("rank", rank, transport.rank)):
        if given not in (-1, real):
            raise StateError("init_process_group", f"{name}={real}, as the launcher says", str(given), _MPIEXEC)
    if transport.size != found.world_size:
        raise StateError("init_process_group", f"{found.world_size} ranks, as {found.launcher} says",
                         f"{transport.size} by MPI", CURES.get(found.launcher, _MPIEXEC))  # fmt: skip


def _socket_transport(found: Launched, limit: float, init_method: str | None, rank: int, world_size: int) -> Transport:
    """The transport of the processes that meet at a host and port; of this one alone it needs neither."""
    size, place = (found.world_size if world_size == -1 else world_size), (found.rank if rank == -1 else rank)
    if size < 1 or not 0 <= place < size:
        raise ArgumentError("init_process_group", "a rank from 0 to world_size - 1", f"rank={place}, world_size={size}")
    point = _point(init_method)
    if size == 1:
        return Transport(timeout=limit)
    if world_size != -1 and rank == -1 and not found.launcher:
        raise ArgumentError("init_process_group", "a rank beside world_size", "none", "or a launcher that says both")
    if point is None:
        got = "no MASTER_ADDR and MASTER_PORT"
        cure = 'ampkit launch, torchrun or srun set them; or init_method="tcp://host:port"'
        raise StateError("init_process_group", "to know where rank 0 can be reached", got, cure)
    return sockets.connect(Meeting(place, size, *point, key_of(*point)), limit)


def _point(init_method: str | None) -> tuple[str, int] | None:
    """Host and port where the ranks meet."""
    if init_method is None or init_method.startswith("env:"):
        return meeting_point()
    found = re.fullmatch(r"tcp://(?:\[(.+)\]|([^:/]+)):(\d{1,5})/?", init_method)
    if found is None or not 0 < int(found[3]) < 1 << 16:
        raise ArgumentError("init_process_group", "init_method env:// or tcp://host:port", repr(init_method))
    return found[1] or found[2], int(found[3])


def _group_of(ranks: Sequence[int], transport: Transport) -> ProcessGroup:
    """The group of these ranks, with a transport of GPUs where NCCL is to be used. All of them call it."""
    gpus = NCCLTransport(transport.copy()) if _engine == "nccl" and type(transport) is not Transport else None
    return ProcessGroup(ranks, transport, gpus)


def _seconds(timeout: Any) -> float:
    limit = TIMEOUT if timeout is None else timeout
    seconds = float(limit.total_seconds() if isinstance(limit, timedelta) else limit)
    if not 0 < seconds < math.inf:
        raise ArgumentError("init_process_group", "a timeout above 0", repr(timeout))
    return seconds


def destroy_process_group(group_to_end: ProcessGroup | None = None) -> None:
    """End a group, or all of them for None, after what was called of it."""
    ended = _groups[::-1] if group_to_end in (None, group.WORLD) else [group_to_end]
    for each in ended:
        if each is not None:
            each.close()
            _groups.remove(each)
    if group.WORLD in ended:
        group.WORLD = None


def go_on_without_lost() -> list[int]:
    """Replace the group of all processes by one of those that are left after RankLostError. -> the ranks that died."""
    assert group.WORLD is not None
    transport = group.WORLD.transport
    assert isinstance(transport, ResilientTransport)
    for each in _groups:
        if each.gpu_transport is not None:
            each.gpu_transport.abandon()
    made = transport.shrunk()
    destroy_process_group()
    group.WORLD = _group_of(range(made.size), made)
    _groups.append(group.WORLD)
    return transport.missing_from(made)


def group_or_world(where: str, given: ProcessGroup | None = None) -> ProcessGroup:
    """`given`, or the group of all processes for None.

    Raises StateError before init_process_group, and for a group that this process is not in.
    """
    found = group.WORLD if given is None else given
    if found is None:
        raise StateError(where, "init_process_group() before", "no group of processes")
    if not isinstance(found, ProcessGroup):
        raise StateError(where, "a group that this process is in", repr(given), "only its ranks call it")
    return found


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's number in the group: 0 to get_world_size() - 1; -1 where it is not in it."""
    return -1 if group is NON_MEMBER else group_or_world("get_rank", group).rank()


def get_world_size(group: ProcessGroup | None = None) -> int:
    """The number of processes in the group; -1 where this one is not in it."""
    return -1 if group is NON_MEMBER else group_or_world("get_world_size", group).size()


def get_backend(group: ProcessGroup | None = None) -> str:
    """The engine: "nccl", which is the default, "mpi" or "sockets"."""
    group_or_world("get_backend", group)
    return _engine


def get_process_group_ranks(group: ProcessGroup | None) -> list[int]:
    """The ranks of the group, as numbers among all processes."""
    return list(group_or_world("get_process_group_ranks", group).ranks)


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """The number among all processes of a number in the group."""
    ranks = group_or_world("get_global_rank", group).ranks
    if not 0 <= group_rank < len(ranks):
        raise ArgumentError("get_global_rank", f"a rank from 0 to {len(ranks) - 1}", repr(group_rank))
    return ranks[group_rank]


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The number in the group of a number among all processes."""
    return group_or_world("get_group_rank", group).rank_of("get_group_rank", global_rank)


class _NonMember:
    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


NON_MEMBER: Any = _NonMember()


def new_group(
    ranks: Sequence[int] | None = None, timeout: Any = None, backend: str | None = None, **ignored: Any
) -> Any:
    """A group of some ranks, by default all. Every process calls it, those outside of the group too.

    -> the ProcessGroup, or GroupMember.NON_GROUP_MEMBER on processes outside of it.
    Raises ArgumentError for numbers that are no ranks, or that repeat.
    """
    return new_groups([list(range(get_world_size())) if ranks is None else list(ranks)], timeout)[0]


def new_groups(groups: Sequence[Sequence[int]], timeout: Any = None) -> list[Any]:
    """`new_group` of several groups that have no rank in common, at once."""
    world = group_or_world("new_group")
    flat = sorted(rank for ranks in groups for rank in ranks)
    if any(rank not in world.ranks for rank in flat) or len(set(flat)) != len(flat) or not all(groups):
        raise ArgumentError("new_group", f"ranks from 0 to {world.size() - 1}, each once", str(list(map(list, groups))))
    call = Call(f"new_group({[list(ranks) for ranks in groups]})", call_site())

    def split() -> Transport | None:
        world.transport.barrier(call)  # with a time limit, and checked to be the same call
        return world.transport.split(groups)

    transport = world.run(split, False)
    if transport is not None and timeout is not None:
        transport.timeout = _seconds(timeout)
    made: list[Any] = []
    for ranks in groups:
        inside = transport is not None and world.rank() in ranks
        made.append(_group_of(ranks, transport) if inside else NON_MEMBER)
    _groups.extend(each for each in made if isinstance(each, ProcessGroup))
    return made

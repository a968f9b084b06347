"""Rank and number of processes, as launchers announce them by environment variables.

torchrun sets RANK, WORLD_SIZE and LOCAL_RANK; Open MPI OMPI_COMM_WORLD_RANK and its kin; MPICH and Intel MPI PMI_RANK,
PMI_SIZE and MPI_LOCALRANKID; srun SLURM_PROCID, SLURM_STEP_NUM_TASKS and SLURM_LOCALID. SLURM_NTASKS does not count: a
batch script has it too, and is one process. SkyPilot sets SKYPILOT_NODE_RANK, SKYPILOT_NUM_NODES and SKYPILOT_NODE_IPS,
Kubeflow Trainer PET_NODE_RANK, PET_NNODES and PET_MASTER_ADDR: they start one process on each machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from ..base.errors import ConfigError

# (launcher, its variables of rank, number of processes, rank on this machine); the first that is whole counts.
LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", ""),
    ("Kubeflow Trainer", "PET_NODE_RANK", "PET_NNODES", ""),
)
BY_MACHINE = ("SkyPilot", "Kubeflow Trainer")  # that start one process on each

NODES = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")  # of which the first that is set counts
JOB_PORTS = range(20000, 30000)  # below those that systems give to whoever asks for any
# What lets MPI know of the ranks that a launcher has started.
CURES = {
    "torchrun": "torchrun starts processes that MPI does not connect: `mpiexec -n 2 python script.py`",
    "SLURM": "srun --mpi=pmi2 for MPICH, --mpi=pmix for Open MPI; or mpiexec in the batch script",
}


class Launched(NamedTuple):
    """How this process was started: by which launcher, as which of how many, and which of those on this machine.

    launcher: "" for a process that was started alone, which is rank 0 of 1.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int


def launched(variables: Mapping[str, str] | None = None) -> Launched:
    """Read the variables of the first launcher of LAUNCHERS that has set rank and number of processes.

    A rank on this machine that is not announced is 0. Raises ConfigError for values that are no such numbers.
    """
    found = os.environ if variables is None else variables
    for launcher, rank, world_size, local_rank in LAUNCHERS:
        if rank in found and world_size in found:
            size = _number(found, world_size, least=1)
            here = _number(found, local_rank) if local_rank in found else 0
            return Launched(launcher, _number(found, rank, below=size), size, here)
    return Launched("", 0, 1, 0)


def meeting_point(variables: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """Host and first port where the ranks of a launcher meet; None where it has announced none.

    Raises ConfigError for a port that is none.
    """
    found = os.environ if variables is None else variables
    host, port = found.get("MASTER_ADDR"), None
    if "MASTER_PORT" in found:
        # torchrun itself listens on the port, for PyTorch's ranks.
        port = _number(found, "MASTER_PORT", least=1, below=1 << 16) + (
            found.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        )
    if (hosts := found.get("SKYPILOT_NODE_IPS", "").split()) and not (host and port):
        number = crc32(found.get("SKYPILOT_TASK_ID", "").encode())
        return host or hosts[0], port or JOB_PORTS[number * 8 % len(JOB_PORTS)]
    if "PET_MASTER_ADDR" in found and not (host and port):
        return host or found["PET_MASTER_ADDR"], port or _number(found, "PET_MASTER_PORT", least=1, below=1 << 16)
    nodes = next((found[name] for name in NODES if found.get(name)), None)
    if nodes is not None:
        step = int(found.get("SLURM_STEP_ID", "0")) if found.get("SLURM_STEP_ID", "0").isdecimal() else 0
        host = host or first_host(nodes)
        port = port or JOB_PORTS[(_number(found, "SLURM_JOB_ID") + 16 * step) * 8 % len(JOB_PORTS)]
    return (host, port) if host and port else None


class Machines(NamedTuple):
    """The machines of a job with one process each. place: this one's number. host, port: of the first."""

    place: int
    size: int
    host: str
    port: int


def machines(variables: Mapping[str, str] | None = None) -> Machines | None:
    """The machines of SkyPilot or Kubeflow Trainer; None where another launcher has started this process, or one alone.

    Raises ConfigError for variables that say nothing sensible.
    """
    own, point = launched(variables), meeting_point(variables)
    if own.launcher not in BY_MACHINE or own.world_size == 1:
        return None
    if point is None:
        raise ConfigError(own.launcher, "the address of its first machine", "none", "set MASTER_ADDR and MASTER_PORT")
    return Machines(own.rank, own.world_size, *point)


def first_host(nodes: str) -> str:
    """The first machine of SLURM's list of them: node[03-05,9],other is node03."""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", nodes)[0])


def knows_mpi(launcher: str, variables: Mapping[str, str] | None = None) -> bool:
    """Whether MPI can connect the processes that a launcher has started."""
    found = os.environ if variables is None else variables
    return launcher in ("Open MPI", "MPICH") or (launcher == "SLURM" and "PMIX_RANK" in found)


def _number(variables: Mapping[str, str], name: str, least: int = 0, below: int | None = None) -> int:
    text = variables[name]
    if not (text.isascii() and text.isdecimal()) or int(text) < least or (below is not None and int(text) >= below):
        wanted = f"a number from {least}" + ("" if below is None else f" to {below - 1}")
        raise ConfigError(name, wanted, repr(text), "the launcher sets it: leave it as it is")
    return int(text)

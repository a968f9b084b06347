"""The device of a program that mpiexec starts: its arguments may say `emulated`, for a GPU by emulation and NCCL."""

from __future__ import annotations

from ampkit import backends, set_default_device


def on_device_of(arguments: list[str]) -> str:
    """The backend of init_process_group. `emulated` among the arguments, which is removed, makes tensors on a GPU."""
    if "emulated" not in arguments:
        return "mpi"
    arguments.remove("emulated")
    from cuda_on_cpu import emulated, streams

    streams.COUNT = 4  # one per rank
    backends.install(emulated())
    set_default_device("cuda")
    return "nccl"

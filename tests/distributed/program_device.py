"""The device of a program that mpiexec starts: its arguments may say `emulated`, for an emulated GPU, or `cuda`."""

from __future__ import annotations

from ampkit import backends, set_default_device


def on_device_of(arguments: list[str]) -> str:
    """The backend of init_process_group. `emulated` or `cuda`, which is removed, makes tensors on a GPU."""
    named = [word for word in ("emulated", "cuda") if word in arguments]
    if not named:
        return "mpi"
    arguments.remove(named[0])
    if named[0] == "emulated":
        from cuda_on_cpu import emulated, streams

        streams.COUNT = 4  # one per rank
        backends.install(emulated())
    set_default_device("cuda")
    return "nccl"

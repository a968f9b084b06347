"""The backend of a program of several ranks: its arguments may say `emulated` or `cuda`, for a GPU, and `sockets`."""

from __future__ import annotations

from ampkit import backends, set_default_device


def on_device_of(arguments: list[str]) -> str:
    """The backend of init_process_group. `emulated` or `cuda` makes tensors on a GPU; `sockets` connects by TCP.

    The words are removed.
    """
    host = "sockets" if "sockets" in arguments else "mpi"
    arguments[:] = [word for word in arguments if word != "sockets"]
    named = [word for word in ("emulated", "cuda") if word in arguments]
    if not named:
        return host
    arguments.remove(named[0])
    if named[0] == "emulated":
        from cuda_on_cpu import emulated, streams

        streams.COUNT = 4  # one per rank
        backends.install(emulated())
    set_default_device("cuda")
    return "nccl" if host == "mpi" else f"cpu:{host},cuda:nccl"

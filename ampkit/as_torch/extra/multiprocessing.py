"""`torch.multiprocessing`: Python's, whose processes get copies of tensors, or shared ones themselves, and `spawn`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from ...base.errors import StateError


def get_all_sharing_strategies() -> set[str]:
    """{"file_system"}."""
    return {"file_system"}


def get_sharing_strategy() -> str:
    """The only strategy, "file_system"."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Does nothing: memory is shared as Python does it (`Tensor.share_memory_`)."""


class ProcessContext:
    """The processes that `spawn` started."""

    def __init__(self, processes: Sequence[Any]):
        self.processes = processes

    def pids(self) -> list[int]:
        """Their numbers."""
        return [int(process.pid) for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the processes -> whether all have ended. Raises StateError if one failed, and ends the others."""
        for process in self.processes:
            process.join(timeout)
        codes = [process.exitcode for process in self.processes]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            for process in self.processes:
                process.terminate()
            raise StateError("spawn", "processes that end with status 0", f"{codes[failed]} of process {failed}")
        return None not in codes


def start_processes(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """Call `fn(i, *args)` in `nprocs` new processes; with join=True wait for them."""
    context: Any = multiprocessing.get_context(start_method)
    processes = [context.Process(target=fn, args=(i, *args), daemon=daemon) for i in range(nprocs)]
    for process in processes:
        process.start()
    started = ProcessContext(processes)
    if not join:
        return started
    while not started.join():
        pass
    return None


spawn = start_processes

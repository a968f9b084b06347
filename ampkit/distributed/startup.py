"""The start of MPI with a time limit. MPI_Init itself waits for ever for a rank that does not call it.

While this rank waits in it, a thread looks who else of this machine has come, and who has ended without. Linux only;
elsewhere there is only the time limit.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ..backends.threads import on_this_device
from .environment import LAUNCHERS, Launched, launched
from .transport import Call, DistError, call_site, mismatch, need_present

PERIOD = 0.5  # seconds between two looks
STARTING = 4  # looks in a row without a rank's process, after which it has ended: a launcher starts one after the other
READING_SECONDS = 0.5  # for the launcher to read what a rank has printed, which is lost at an abort
LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")  # how many ranks MPICH and Open MPI run on this machine


def is_available() -> bool:
    """Whether mpi4py and an MPI library can be loaded; nothing is initialized."""
    spec = importlib.util.find_spec("mpi4py") and importlib.util.find_spec("mpi4py.MPI")
    if spec is None or spec.origin is None:
        return False
    try:
        ctypes.CDLL(spec.origin)
    except OSError:  # mpi4py without an MPI library
        return False
    return True


def initialized(timeout: float) -> Any:
    """mpi4py's module MPI, after MPI_Init_thread, which returns once every rank has called it.

    Where a rank does not within `timeout` seconds, or a rank of this machine has ended before, this process ends with
    the text of a DistError, and MPI's launcher then ends the others: the call itself cannot be interrupted.
    Raises ImportError or RuntimeError where mpi4py or an MPI library is missing.
    """
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    if not MPI.Is_initialized():
        with _watched(Call("init_process_group()", call_site()), timeout):
            # By ctypes, which releases Python's lock meanwhile.
            provided = ctypes.byref(ctypes.c_int())
            ctypes.CDLL(MPI.__file__).MPI_Init_thread(None, None, int(MPI.THREAD_MULTIPLE), provided)
        for each in (MPI.COMM_SELF, MPI.COMM_WORLD):  # as mpi4py's own start does
            each.Set_errhandler(MPI.ERRORS_RETURN)
    return MPI


@contextmanager
def _watched(call: Call, timeout: float) -> Iterator[None]:
    done, machine = Event(), _Machine(launched())
    target, given = on_this_device(_watch), (call, timeout, done, machine)
    thread = Thread(target=target, args=given, name="ampkit-mpi-start", daemon=True)
    with closing(machine):
        thread.start()
        try:
            yield
        finally:  # else the thread would end a process that goes on after Ctrl-C
            done.set()
            thread.join()


def _watch(call: Call, timeout: float, done: Event, machine: _Machine) -> None:
    deadline = time.monotonic() + timeout
    while not done.wait(min(PERIOD, max(0.0, deadline - time.monotonic()))):
        try:
            machine.look()
            for rank in machine.ended():
                raise mismatch(call, rank, "the end of its program")
            if time.monotonic() >= deadline:
                need_present(call, machine.missing(), timeout)
                raise DistError(call.place, f"every rank within {timeout:g} s", "too few of them")
        except DistError as error:
            own = machine.launched
            sys.stderr.write(f"rank {own.rank} of {own.world_size} ended:\n{type(error).__name__}: {error}\n")
            sys.stderr.flush()
            time.sleep(READING_SECONDS)
            os._exit(1)


class _Machine:
    """The ranks of this machine: which have come here, and whose processes run.

    A rank that has come holds a Unix socket by a name of the launcher and the rank, which Linux frees with the
    process. Processes are the children of the launcher's, and have the rank among their environment variables.
    """

    def __init__(self, own: Launched):
        self.launched = own
        self._variable = next((rank for name, rank, *_ in LAUNCHERS if name == own.launcher), "")
        self._launcher = _process_without(self._variable)
        everyone = any(os.environ.get(name) == str(own.world_size) for name in LOCAL_SIZES)
        self._expected = set(range(own.world_size)) if everyone else {own.rank}
        self._present = {own.rank}
        self._absent: dict[int, int] = {}  # looks in a row that saw no process, by rank
        self._sign = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with suppress(OSError):  # where the system has no such names
            self._sign.bind(self._name(own.rank))

    def _name(self, rank: int) -> str:
        return f"\0ampkit-rank-{self._launcher}-{rank}"

    def close(self) -> None:
        """Give the name up."""
        self._sign.close()

    def look(self) -> None:
        """Bring what is known up to date."""
        running = set(_ranks_below(self._launcher, self._variable))
        self._expected |= running
        self._present |= {rank for rank in self._expected - self._present if self._has_come(rank)}
        for rank in self._expected:
            self._absent[rank] = 0 if rank in running or not running else self._absent.get(rank, 0) + 1

    def _has_come(self, rank: int) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            try:
                other.connect(self._name(rank))
            except OSError:
                return False
        return True

    def missing(self) -> list[int]:
        """The ranks that have not come; of this machine, or of all where all run on it."""
        return sorted(self._expected - self._present)

    def ended(self) -> list[int]:
        """Those of them whose process has ended."""
        return [rank for rank in self.missing() if self._absent[rank] >= STARTING]


def _process_without(variable: str) -> int:
    """This process's nearest ancestor that does not have the environment variable: the launcher's, on Linux."""
    process = os.getpid()
    while process > 1 and variable in _variables(process):
        process = _state_and_parent(process)[1]
    return process


def _ranks_below(launcher: int, variable: str) -> Iterator[int]:
    """The ranks whose processes are children of `launcher` and run."""
    for entry in Path("/proc").glob("[0-9]*"):
        state, parent = _state_and_parent(int(entry.name))
        rank = _variables(int(entry.name)).get(variable, "") if parent == launcher and state != "Z" else ""
        if rank.isdecimal():
            yield int(rank)


def _state_and_parent(process: int) -> tuple[str, int]:
    with suppress(OSError):
        state, parent, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return state, int(parent)
    return "", 0  # ended meanwhile, or no Linux


def _variables(process: int) -> dict[str, str]:
    with suppress(OSError):  # ended meanwhile, another user's, or no Linux
        text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
        return {name: value for name, _, value in (line.partition("=") for line in text.split("\0"))}
    return {}

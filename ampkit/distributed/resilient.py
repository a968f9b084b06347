"""The transport of an MPI that goes on when a rank dies: Open MPI with ULFM, `mpiexec --with-ft ulfm`.

The ranks that are left raise RankLostError, wherever they wait, and `shrunk` is their transport without the dead ones.
Bland, Bouteiller, Herault, Bosilca, Dongarra 2013, IJHPCA 27(3): User Level Failure Mitigation.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Timer
from typing import Any
from weakref import WeakSet

import numpy as np

from ..backends import Array
from . import mpi
from .mpi import LONGEST_PAUSE, MPITransport
from .transport import Call, DistError, Transport, need_present

START_SECONDS = 300.0  # in which all ranks begin
COPY_SECONDS = 30.0  # for MPI to make communicators, when all have begun
LONGEST_SECONDS = 60.0  # in which all ranks that are left come together
_open: WeakSet[ResilientTransport] = WeakSet()


class RankLostError(DistError):
    """A rank that has died, where MPI can go on without it."""


def connect(timeout: float) -> MPITransport:
    """`mpi.connect`; a rank that dies before MPI has connected all, for whom MPI waits for ever, ends this process."""
    limit = min(timeout, START_SECONDS)
    faulthandler.dump_traceback_later(limit + COPY_SECONDS, exit=True)  # copies of communicators hold Python's lock
    try:
        connected = mpi.connect(timeout, ResilientTransport, limit)
        atexit.register(signal.alarm, int(LONGEST_SECONDS))  # MPI's end waits for ever, too, for one that dies in it
        return connected
    finally:
        faulthandler.cancel_dump_traceback_later()


def is_enabled() -> bool:
    """Whether Open MPI's launcher has enabled ULFM."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112  Open MPI's


class ResilientTransport(MPITransport):
    """The ranks of a communicator of ULFM."""

    def __init__(self, library: Any, communicator: Any, timeout: float):
        super().__init__(library, communicator, timeout)
        _open.add(self)

    def exchange_others(self, call: Call, sent: Sequence[Array], received: Sequence[Array]) -> None:
        with self._noticing(call):
            super().exchange_others(call, sent, received)

    def send(self, call: Call, array: Array, to: int, tag: int) -> Callable[[], None]:
        with self._noticing(call):
            finish = super().send(call, array, to, tag)
        return lambda: self._noticed(call, finish)

    def receive(self, call: Call, array: Array, source: int | None, tag: int) -> Callable[[], int]:
        with self._noticing(call):
            finish = super().receive(call, array, source, tag)
        return lambda: self._noticed(call, finish)

    def split(self, groups: Sequence[Sequence[int]]) -> Transport | None:
        with self._noticing(Call("new_group()", "")):
            return super().split(groups)

    def agree(self) -> None:
        """Return on all ranks, or raise RankLostError on all of them, if one has died and nobody has raised it."""
        call, deadline = Call("the end of a run", ""), time.monotonic() + self.timeout
        with self._noticing(call):
            request = self.communicator.Iagree(np.ones(1, np.int32))
            while not request.Test():
                time.sleep(LONGEST_PAUSE)
                if time.monotonic() > deadline:
                    need_present(call, [rank for rank in range(self.size) if rank != self.rank], self.timeout)

    def shrunk(self) -> ResilientTransport:
        """The transport of the ranks that are left, in the same order; all of them call it.

        Where one of them does not come within a minute, the whole job is aborted.
        """
        alarm = Timer(LONGEST_SECONDS, self.library.COMM_WORLD.Abort, [1])  # MPI's own call has no limit
        alarm.start()
        try:
            made = self._shrunk(self.communicator)
        finally:
            alarm.cancel()
        if made.size == 1:
            sys.excepthook = sys.__excepthook__  # the launcher reports success where the last rank aborts
        return made

    def missing_from(self, others: ResilientTransport) -> list[int]:
        """The ranks of this transport that `others` does not have."""
        group = others.communicator.Get_group()
        there = group.Translate_ranks(list(range(group.size)), self.communicator.Get_group())
        return [rank for rank in range(self.size) if rank not in there]

    def _shrunk(self, before: Any) -> ResilientTransport:
        while True:
            found, made = before.Shrink(), None
            with suppress(self.library.Exception):  # another rank has died meanwhile
                made = type(self)(self.library, found.Dup(), self.timeout)
            with suppress(self.library.Exception):
                if found.Agree(int(made is not None)) and made is not None:
                    return made
            before = found

    @contextmanager
    def _noticing(self, call: Call) -> Iterator[None]:
        try:
            yield
        except self.library.Exception as error:
            found = self.explained(error, call)
            if found is error:
                raise
            raise found from None

    def explained(self, error: Exception, call: Call | None = None) -> Exception:
        call = call or Call("a collective", "")
        return self._lost(call) if isinstance(error, self.library.Exception) and self._is_lost() else error

    def _noticed(self, call: Call, action: Callable[[], Any]) -> Any:
        with self._noticing(call):
            return action()

    def _is_lost(self) -> bool:
        return bool(self.communicator.Is_revoked() or self.communicator.Get_failed().Get_size())

    def _lost(self, call: Call) -> RankLostError:
        # End what the other ranks wait for in any group.
        for each in list(_open):
            for communicator in (each.communicator, each.messages):
                with suppress(self.library.Exception):
                    communicator.Revoke()
        return RankLostError(call.place, "all ranks", "one that has died")

    def _mismatch(self, call: Call, rank: int) -> DistError:
        return self._lost(call) if self._is_lost() else super()._mismatch(call, rank)

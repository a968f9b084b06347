"""The transport of MPI, by mpi4py: bytes between ranks by messages without waiting, polled with a time limit.

A message's tag is the signature of the call that it belongs to, so that ranks which make different calls notice it
without further messages. The blocking calls of MPI would occupy a core while they wait, and never give up.
"""

from __future__ import annotations

import atexit
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from ..base.dtypes import NAMES, Array, DType
from ..base.errors import StateError
from .startup import READING_SECONDS, initialized
from .transport import Call, DistError, Transport, mismatch, need_present

DESCRIBE = 32767  # the tag of a message that says which call a rank has made, after signatures differed, or its end
TOLD = 1 << 14  # the first tag of what the library's threads tell each other, above signatures
DESCRIPTION_SECONDS = 5.0  # to wait for it
POLLS, PAUSE, LONGEST_PAUSE = 20, 20e-6, 3e-3  # polls without a pause between them; then pauses, in seconds
PATIENT = POLLS + 100  # polls after which a rank also looks whether those that it waits for have ended
DTYPES = list(NAMES.values())  # in a message's tag: the place here


def connect(timeout: float, kind: type[MPITransport] | None = None, start_timeout: float | None = None) -> MPITransport:
    """The transport of all processes that mpiexec started together. An error that ends one of them ends all.

    start_timeout: seconds within which all ranks must come here, `timeout` by default; otherwise the process ends.
    Raises StateError where mpi4py or an MPI library is missing, or MPI is older than MPI_THREAD_MULTIPLE.
    """
    try:
        library = initialized(timeout if start_timeout is None else start_timeout)
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py without an MPI library
        missing = str(error).partition("\n")[0]
        raise StateError("init_process_group", "mpi4py and MPI", missing, "pip install 'ampkit[mpi]'") from None
    if library.Query_thread() < library.THREAD_MULTIPLE:
        raise StateError("init_process_group", "an MPI with MPI_THREAD_MULTIPLE", f"level {library.Query_thread()}")
    world = library.COMM_WORLD
    if world.size > 1:
        sys.excepthook = _aborting(world)
    return (kind or MPITransport)(library, world.Dup(), timeout)


def _aborting(world: Any) -> Any:
    # Ranks that wait for this one would wait until their time limit.
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        lines = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write(f"rank {world.rank} of {world.size} ended:\n{lines}")
        sys.stderr.flush()
        time.sleep(READING_SECONDS)
        world.Abort(1)

    return hook


class MPITransport(Transport):
    """The ranks of an MPI communicator; between two ranks messages go through a copy of it."""

    on_device = False

    def __init__(self, library: Any, communicator: Any, timeout: float):
        super().__init__(communicator.rank, communicator.size, timeout)
        self.library, self.communicator, self.messages = library, communicator, communicator.Dup()
        self._told: list[Any] = []  # messages under way
        if self.size > 1:
            atexit.register(self._tell, "the end of its program")  # before mpi4py's own, which waits for all ranks

    def exchange_others(self, call: Call, sent: Sequence[Array], received: Sequence[Array]) -> None:
        sources = [rank for rank, array in enumerate(received) if rank != self.rank and array.size]
        targets = [rank for rank, array in enumerate(sent) if rank != self.rank and array.size]
        incoming = [self.communicator.Irecv(self._bytes(received[rank]), rank) for rank in sources]
        outgoing = [self.communicator.Isend(self._bytes(sent[rank]), rank, call.signature) for rank in targets]
        deadline, times, missing = time.monotonic() + self.timeout, 0, len(sources)
        while missing or not self.library.Request.Testall(outgoing):
            ended = self._ended({*sources, *targets}) if times >= PATIENT else set()
            missing -= self._arrived(call, incoming, sources, received) if missing else 0
            self._need_running(call, ended, sources, incoming, targets, outgoing)
            times = self._wait(times)
            if time.monotonic() > deadline:
                late = self._abandon(incoming, sources) if missing else []
                need_present(call, late or self._abandon(outgoing, targets), self.timeout)

    def _arrived(self, call: Call, incoming: list[Any], sources: list[int], received: Sequence[Array]) -> int:
        """How many further messages have arrived. Raises DistError for one that belongs to another call."""
        statuses = [self.library.Status() for _ in sources]
        try:
            done = self.library.Request.Testsome(incoming, statuses) or []
        except self.library.Exception:  # a message longer than what was to come
            longer = [status.source for status in statuses if status.error and status.source in sources]
            raise self._mismatch(call, longer[0] if longer else sources[0]) from None
        for index, status in zip(done, statuses, strict=False):
            nbytes = status.Get_count(self.library.BYTE)
            if status.tag != call.signature or nbytes != received[sources[index]].nbytes:
                raise self._mismatch(call, sources[index])
        return len(done)

    @staticmethod
    def _wait(times: int) -> int:
        # Short pauses at first: a rank that computes needs the core more than one that waits.
        time.sleep(0 if times < POLLS else min(PAUSE * 1.1 ** (times - POLLS), LONGEST_PAUSE))
        return min(times + 1, POLLS + 1000)  # beyond, 1.1 ** times would overflow

    @staticmethod
    def _abandon(requests: list[Any], ranks: list[int]) -> list[int]:
        # The ranks whose requests are not complete; their memory is not written later.
        missing = [rank for rank, request in zip(ranks, requests, strict=True) if request and not request.Test()]
        for request in requests:
            if request:
                request.Cancel()
        return missing

    def _tell(self, what: str) -> list[Any]:
        return [self.messages.isend(what, rank, DESCRIBE) for rank in range(self.size) if rank != self.rank]

    def _ended(self, ranks: Iterable[int]) -> set[int]:
        # Those that have ended, or met an error: they come to no further call.
        return {rank for rank in ranks if self.messages.iprobe(rank, DESCRIBE)}

    def _need_running(
        self, call: Call, ended: set[int], sources: list[int], incoming: list[Any], targets: list[int], outgoing: Any
    ) -> None:
        # What a rank sent before its end has arrived by now.
        late = {rank for rank, request in zip(sources, incoming, strict=True) if request}
        if ended and not self.library.Request.Testall(outgoing):
            late |= set(targets)
        if lost := ended & late:
            raise self._mismatch(call, min(lost))

    def _mismatch(self, call: Call, rank: int) -> DistError:
        # Tell the others which call this rank has made, and hear which that one has.
        told = self._tell(call.says)
        deadline, theirs = time.monotonic() + min(DESCRIPTION_SECONDS, self.timeout), "another call"
        while time.monotonic() < deadline:
            if self.messages.iprobe(rank, DESCRIBE):
                theirs = self.messages.recv(source=rank, tag=DESCRIBE)
                break
            self.library.Request.testall(told)
            time.sleep(LONGEST_PAUSE)
        return mismatch(call, rank, theirs)

    def send(self, call: Call, array: Array, to: int, tag: int) -> Callable[[], None]:
        request = self.messages.Isend(self._bytes(array), to, self._tag(array.dtype, tag))
        return lambda: self._finish(call, request, to)

    def receive(self, call: Call, array: Array, source: int | None, tag: int) -> Callable[[], int]:
        status = self.library.Status()
        place = self.library.ANY_SOURCE if source is None else source
        request = self.messages.Irecv(self._bytes(array), place, self._tag(array.dtype, tag))

        def finish() -> int:
            try:
                self._finish(call, request, source, status, lambda: self._need_dtype(call, array, place, tag))
            except self.library.Exception:  # a message longer than the array
                raise mismatch(call, status.source, f"more than {array.nbytes} bytes") from None
            if (count := status.Get_count(self.library.BYTE)) != array.nbytes:
                raise mismatch(call, status.source, f"{count} bytes, not {array.nbytes},")
            return int(status.source)

        return finish

    @staticmethod
    def _tag(dtype: DType, tag: int) -> int:
        return len(DTYPES) * tag + DTYPES.index(dtype)

    def _need_dtype(self, call: Call, array: Array, source: int, tag: int) -> None:
        # A message of another dtype with this tag, which would never be received.
        for dtype in DTYPES:
            status = self.library.Status()
            if dtype != array.dtype and self.messages.iprobe(source, self._tag(dtype, tag), status):
                raise mismatch(call, status.source, f"values of {dtype.name}")

    def _finish(
        self, call: Call, request: Any, rank: int | None, status: Any = None, look: Callable[[], None] | None = None
    ) -> None:
        deadline, times = time.monotonic() + self.timeout, 0
        while not request.Test(status):
            times = self._wait(times)
            if look is not None and times >= PATIENT:
                look()
            if time.monotonic() > deadline:
                request.Cancel()
                others = range(self.size) if rank is None else [rank]
                need_present(call, [each for each in others if each != self.rank], self.timeout)

    def split(self, groups: Sequence[Sequence[int]]) -> Transport | None:
        mine = next((number for number, ranks in enumerate(groups) if self.rank in ranks), None)
        color = self.library.UNDEFINED if mine is None else mine
        place = 0 if mine is None else list(groups[mine]).index(self.rank)
        made = self.communicator.Split(color, place)
        return None if mine is None else type(self)(self.library, made, self.timeout)

    def tell(self, rank: int, kind: int, text: str) -> None:
        self._told = [request for request in self._told if not request.Test()]
        self._told.append(self.communicator.isend(text, rank, TOLD + kind))

    def heard(self, kind: int, source: int | None = None) -> tuple[int, str] | None:
        self._told = [request for request in self._told if not request.Test()]
        status, place = self.library.Status(), self.library.ANY_SOURCE if source is None else source
        if not self.communicator.iprobe(place, TOLD + kind, status):
            return None
        return status.source, self.communicator.recv(source=status.source, tag=TOLD + kind)

    def copy(self) -> MPITransport:
        return type(self)(self.library, self.communicator.Dup(), self.timeout)

    def _bytes(self, array: Array) -> Any:
        return [array.view(np.uint8), self.library.BYTE]

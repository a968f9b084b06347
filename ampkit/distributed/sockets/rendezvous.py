"""Rendezvous: every rank tells rank 0 where it can be reached, and rank 0 tells all.

Rank 0 listens on the first free one of a few ports that all ranks know. Under torchrun MASTER_PORT itself is its own,
and other jobs may have others: a handshake tells which is this job's.
"""

from __future__ import annotations

import hashlib
import os
import queue
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ...base.errors import StateError, error_with_text
from ..transport import Call, DistError, absent, call_site, mismatch
from .handshake import HandshakeError, Listener, connected, is_loopback, machine, read_text, write_text

PORTS = 8  # that rank 0 tries
PERIOD, LONGEST_PERIOD = 0.02, 0.5  # seconds between two attempts to reach rank 0
STRANGERS_SECONDS = 10.0  # for which a rank tries on where it was refused: rank 0 may still be to come
GRACE = 5.0  # seconds that a rank waits longer than rank 0, which says who is missing
TOKEN = "AMPKIT_RENDEZVOUS_TOKEN"
# What all ranks of a job have in common, and other jobs have not.
JOB = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID", "SKYPILOT_TASK_ID")


class Meeting(NamedTuple):
    """Where a job's ranks meet. rank: this one's number. first_port: the first that rank 0 tries. says: the call."""

    rank: int
    size: int
    host: str
    first_port: int
    key: bytes
    says: str = "init_process_group()"

    @property
    def ports(self) -> range:
        return range(self.first_port, min(self.first_port + PORTS, 1 << 16))


def key_of(host: str, port: int, variables: Mapping[str, str] | None = None) -> bytes:
    """32 bytes that ranks of a job know: of AMPKIT_RENDEZVOUS_TOKEN, a secret, or of what the launcher says of the job.

    The latter tells jobs apart, and keeps out who does not know of them; it is no secret from the machine's users.
    """
    found = os.environ if variables is None else variables
    given = found.get(TOKEN)
    parts = [TOKEN, given] if given else ["job", host, str(port), *(f"{name}={found.get(name)}" for name in JOB)]
    return hashlib.sha256("\0".join(parts).encode()).digest()


Addresses = list[tuple[str, int, str]]  # of each rank's listener: host, port, and the machine that it is on


def meet(meeting: Meeting, port: int, timeout: float) -> Addresses:
    """Tell the other ranks the port of this one's listener. -> the addresses of all. All ranks call it.

    Raises DistError, on every rank that has come, where one does not within `timeout` seconds, ends before, has
    another number of ranks in mind or the same rank as another; StateError where no port is free.
    """
    call = Call(meeting.says, call_site())
    if meeting.rank:
        return _join(meeting, call, port, timeout)
    return _Host(meeting, call, timeout).gather(port)


class _Host:
    """Rank 0, which waits for the others."""

    def __init__(self, meeting: Meeting, call: Call, timeout: float):
        self._meeting, self._call, self._timeout = meeting, call, timeout
        self._deadline = time.monotonic() + timeout
        self._new: queue.SimpleQueue[tuple[socket.socket, Any]] = queue.SimpleQueue()
        self._come: dict[int, socket.socket] = {}
        self._ports: dict[int, tuple[int, str]] = {}
        self._listener = self._listen()

    def _listen(self) -> Listener:
        for port in self._meeting.ports:
            with suppress(OSError):
                return Listener(self._meeting.key, lambda *new: self._new.put(new), self._meeting.host, port)
        ports = self._meeting.ports
        cure = "another MASTER_PORT, the same on all ranks"
        raise StateError(self._call.says, "a free port for rank 0", f"none from {ports[0]} to {ports[-1]}", cure)

    def gather(self, port: int) -> Addresses:
        try:
            while len(self._come) < self._meeting.size - 1:
                self._wait()
            return self._tell(port)
        except DistError as error:
            self._answer({"error": str(error)})
            raise
        finally:
            self._listener.close()
            for connection in self._come.values():
                connection.close()

    def _wait(self) -> None:
        with suppress(queue.Empty):
            self._admit(*self._new.get(timeout=min(0.1, max(0.0, self._deadline - time.monotonic()))))
        for rank, connection in self._come.items():
            if _has_ended(connection):
                raise mismatch(self._call, rank, "the end of its program")
        if time.monotonic() > self._deadline:
            missing = [rank for rank in range(1, self._meeting.size) if rank not in self._come]
            raise absent(self._call, missing, self._timeout)

    def _admit(self, connection: socket.socket, hello: Any) -> None:
        rank, size, port, on = (hello.get(name) for name in ("rank", "size", "port", "machine"))
        wrong = None
        if size != self._meeting.size:
            wrong = "the same number of ranks on all", f"{self._meeting.size} on rank 0, {size} on rank {rank}"
        elif rank in self._come or not 0 < rank < size:
            wrong = f"ranks 0 to {self._meeting.size - 1}, each once", f"rank {rank} twice"
        self._come[rank if wrong is None else -1] = connection
        self._ports[rank] = port, on
        if wrong is not None:
            raise DistError(self._call.place, *wrong)

    def _tell(self, port: int) -> Addresses:
        hosts = [""] * self._meeting.size  # "": rank 0's machine, as a rank reaches it
        for rank, connection in self._come.items():
            host = connection.getpeername()[0].removeprefix("::ffff:")
            hosts[rank] = "" if is_loopback(host) else host
        ports = [(port, machine()), *(self._ports[rank] for rank in range(1, self._meeting.size))]
        found = [(host, *port) for host, port in zip(hosts, ports, strict=True)]
        self._answer({"addresses": found})
        return _from_here(self._meeting, found)

    def _answer(self, what: Any) -> None:
        for connection in self._come.values():
            with suppress(OSError):  # it has ended: the others notice
                write_text(connection, what)


def _has_ended(connection: socket.socket) -> bool:
    # A rank says nothing more until it is answered.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _join(meeting: Meeting, call: Call, port: int, timeout: float) -> Addresses:
    deadline = time.monotonic() + timeout
    with _reached(meeting, call, timeout) as connection:
        try:
            hello = {"rank": meeting.rank, "size": meeting.size, "port": port, "machine": machine()}
            write_text(connection, hello)
            connection.settimeout(max(0.0, deadline - time.monotonic()) + GRACE)
            answer = read_text(connection)
        except TimeoutError:
            raise absent(call, [0], timeout) from None
        except OSError:
            raise mismatch(call, 0, "the end of its program") from None
    if "error" in answer:
        raise error_with_text(DistError, answer["error"])
    return _from_here(meeting, answer["addresses"])


def _reached(meeting: Meeting, call: Call, timeout: float) -> socket.socket:
    """The connection to rank 0."""
    begin, pause, refused, last = time.monotonic(), PERIOD, None, "no listener"
    while (left := begin + timeout - time.monotonic()) > 0:
        for port in meeting.ports:
            try:
                return connected(meeting.host, port, meeting.key, min(left, GRACE))
            except HandshakeError:
                refused = f"{meeting.host}:{port}"
            except OSError as error:  # not yet there, or another program
                last = str(error)
        if refused is not None and time.monotonic() > begin + STRANGERS_SECONDS:
            got, cure = f"another one at {refused}", f"{TOKEN}: the same on all ranks of a job, another for each job"
            raise DistError(call.place, "rank 0 with this job's token", got, cure)
        time.sleep(min(pause, max(0.0, begin + timeout - time.monotonic())))
        pause = min(pause * 1.5, LONGEST_PERIOD)
    cure = f"is it at {meeting.host}, ports {meeting.ports[0]} to {meeting.ports[-1]}? the last answer: {last}"
    raise DistError(call.place, f"every rank within {timeout:g} s", "nothing from rank 0", cure)


def _from_here(meeting: Meeting, addresses: Any) -> Addresses:
    return [(host or meeting.host, port, on) for host, port, on in addresses]

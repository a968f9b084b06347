"""The transport of TCP connections between ranks: each pair of a group has one for collectives.

A message begins with the call that it belongs to, in words, so that ranks which make different calls notice it without
further messages. Nothing waits without a time limit, and waiting takes no core.
"""

from __future__ import annotations

import atexit
import select
import socket
import struct
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np

from ...base.dtypes import NAMES, Array, DType
from ..transport import Call, DistError, Transport, absent, mismatch
from .messages import ENDED, Message, group_key
from .peers import Peers
from .rendezvous import Meeting

CHUNK = 1 << 18  # bytes for a call of the system: as many stay in a core's cache
HEADER = struct.Struct("<IQ")  # length of the call's words, bytes of values
DTYPES = list(NAMES.values())  # in a message's number: the place here
LONGEST_CALL = 1 << 16  # bytes
CONTROL = 1 << 31  # the first number of messages that are none of a script


def connect(meeting: Meeting, timeout: float) -> SocketTransport:
    """The transport of all ranks of `meeting`. An error that ends one of them ends those that wait for it.

    Raises DistError where a rank does not come within `timeout` seconds, and what `rendezvous.meet` raises.
    """
    peers = Peers(meeting, timeout)
    made = SocketTransport(peers, range(peers.size), "all", timeout)
    atexit.register(made.close)
    sys.excepthook = _telling(weakref.ref(peers))
    return made


def _telling(peers: Callable[[], Peers | None]) -> Any:
    # Ranks that wait for this one hear at once why it ends.
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if (found := peers()) is None:
            sys.__excepthook__(kind, error, trace)
            return
        lines = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write(f"rank {found.rank} of {found.size} ended:\n{lines}")
        sys.stderr.flush()
        said = str(error).partition("\n")[0]
        found.close(f"{kind.__name__}: {said}" if said else kind.__name__)

    return hook


class _Link:
    """What one rank and this one still have to send each other in an exchange."""

    def __init__(self, rank: int, connection: socket.socket, call: Call, sent: Array, received: Array):
        self.rank, self.connection, self._call = rank, connection, call
        words = call.says.encode()
        self._head = memoryview(HEADER.pack(len(words), sent.nbytes) + words) if sent.size else memoryview(b"")
        self._out = memoryview(sent.view(np.uint8))
        self._expected = HEADER.pack(len(words), received.nbytes) + words if received.size else b""
        self._came, self._came_count = bytearray(len(self._expected)), 0
        self._into = memoryview(received.view(np.uint8))
        self._events = 0

    @property
    def unsent(self) -> bool:
        return bool(self._head or self._out)

    @property
    def awaited(self) -> bool:
        return self._came_count < len(self._expected) or bool(self._into)

    @property
    def done(self) -> bool:
        return not (self.unsent or self.awaited)

    def watch(self, poll: select.poll) -> None:
        """Let `poll` return when more can be sent or received."""
        events = select.POLLIN * self.awaited | select.POLLOUT * self.unsent
        if events != self._events:
            poll.register(self.connection, events)
            self._events = events

    def rest(self, poll: select.poll) -> None:
        """Let `poll` not return for what the rank sends for its next call."""
        if self._events:
            poll.unregister(self.connection)

    def push(self) -> bool:
        """Send a part. -> whether the system took any."""
        try:
            count = self.connection.sendmsg([self._head, self._out[:CHUNK]])
        except BlockingIOError:
            return False
        of_head = min(count, len(self._head))
        self._head, self._out = self._head[of_head:], self._out[count - of_head :]
        return True

    def pull(self) -> bool:
        """Receive a part. -> whether there was any. Raises DistError for another call, EOFError at the end."""
        try:
            if self._came_count < len(self._expected):
                return self._pull_head()
            count = self.connection.recv_into(self._into[:CHUNK])
        except BlockingIOError:
            return False
        if not count:
            raise EOFError
        self._into = self._into[count:]
        return True

    def _pull_head(self) -> bool:
        head = memoryview(self._came)[self._came_count :]
        count = self.connection.recvmsg_into([head, self._into[:CHUNK]])[0]
        if not count:
            raise EOFError
        rest = max(0, count - len(head))
        self._came_count += count - rest
        if self._came != self._expected and self._came_count >= HEADER.size:
            self._raise_other(bytes(self._came[: self._came_count]) + bytes(self._into[:rest]))
        self._into = self._into[rest:]
        return True

    def _raise_other(self, came: bytes) -> None:
        # Whether what has come so far begins another call, or is the begin of this one.
        if self._expected.startswith(came[: len(self._expected)]) and len(came) < len(self._expected):
            return
        length, nbytes = HEADER.unpack(came[: HEADER.size])
        wanted = HEADER.size + min(length, LONGEST_CALL)
        self.connection.settimeout(1.0)
        with suppress(OSError):  # what came says enough
            while len(came) < wanted and (more := self.connection.recv(LONGEST_CALL)):
                came += more
        theirs = came[HEADER.size : HEADER.size + length].decode(errors="replace")
        same = theirs == self._call.says
        raise mismatch(self._call, self.rank, f"{theirs} with {nbytes} bytes" if same else theirs)


class SocketTransport(Transport):
    """Some ranks of `peers`, by their numbers among all. name: of the group, the same on its ranks alone."""

    on_device = False

    def __init__(self, peers: Peers, ranks: Sequence[int], name: str, timeout: float):
        super().__init__(list(ranks).index(peers.rank), len(ranks), timeout)
        self.peers, self.ranks, self.name = peers, list(ranks), name
        self._group, self._made = group_key(name), 0
        self._links: dict[int, socket.socket] = {}
        self._error: DistError | None = None

    # collectives

    def exchange_others(self, call: Call, sent: Sequence[Array], received: Sequence[Array]) -> None:
        if self._error is not None:  # what is under way belongs to calls that have failed
            raise self._error
        try:
            deadline = time.monotonic() + self.timeout
            links = self._connected(call, sent, received, deadline)
            self._move(call, links, deadline)
        except BaseException as error:
            needs, got = "to end before the next call", f"{type(error).__name__} in it"
            ended = DistError(call.place, needs, got)
            self._error = error if isinstance(error, DistError) else ended
            raise

    def _connected(self, call: Call, sent: Sequence[Array], received: Sequence[Array], deadline: float) -> list[_Link]:
        # First with lower ranks, which accept at any time.
        links = []
        for rank in range(self.size):
            if rank != self.rank and (sent[rank].size or received[rank].size):
                if rank not in self._links:
                    left = max(0.0, deadline - time.monotonic())
                    try:
                        made = self.peers.channel(self.name, self.ranks[rank], call, left)
                    except DistError as error:
                        late = time.monotonic() > deadline
                        raise (absent(call, [rank], self.timeout) if late else error) from None
                    made.setblocking(False)
                    self._links[rank] = made
                links.append(_Link(rank, self._links[rank], call, sent[rank], received[rank]))
        return links

    def _move(self, call: Call, links: list[_Link], deadline: float) -> None:
        poll = select.poll()
        while links:
            moved = [self._step(call, link) for link in links]
            if not all(moved):
                for link in links:
                    if link.done:
                        link.rest(poll)
                links = [link for link in links if not link.done]
            if any(moved) or not links:
                continue
            for link in links:
                link.watch(poll)
            poll.poll(1000 * max(0.0, min(deadline - time.monotonic(), 3600.0)))
            if time.monotonic() > deadline:
                late = [link.rank for link in links if link.awaited] or [link.rank for link in links]
                raise absent(call, late, self.timeout)

    def _step(self, call: Call, link: _Link) -> bool:
        """Whether anything moved between a rank and this one."""
        moved = False
        try:
            if link.unsent:
                moved = link.push()
        except OSError:  # it has ended; what it sent before says more
            if not link.awaited:
                raise self._ended(call, link.rank) from None
        try:
            if link.awaited:
                moved = link.pull() or moved
        except (EOFError, OSError):
            raise self._ended(call, link.rank) from None
        return moved

    def _ended(self, call: Call, rank: int) -> DistError:
        return mismatch(call, rank, self.peers.mail.reason(self.ranks[rank]))

    # messages between two ranks

    def send(self, call: Call, array: Array, to: int, tag: int) -> Callable[[], None]:
        mail, rank = self.peers.mail, self.ranks[to]
        has_left = mail.send(rank, self._group, self._kind(array.dtype, tag), memoryview(array.view(np.uint8)))

        def finish() -> None:
            if not mail.wait_until(lambda: has_left() or rank in mail.ended, self.timeout):
                raise absent(call, [to], self.timeout)
            if not has_left():
                raise mismatch(call, to, mail.ended[rank])

        return finish

    def receive(self, call: Call, array: Array, source: int | None, tag: int) -> Callable[[], int]:
        mail, kind = self.peers.mail, self._kind(array.dtype, tag)
        sources = [rank for rank in self.ranks if rank != self.peers.rank] if source is None else [self.ranks[source]]

        def wanted(message: Message) -> bool:
            return message.source in sources and message.kind == kind

        def of_other_dtype(message: Message) -> bool:
            return message.source in sources and message.kind // len(DTYPES) == tag and message.kind != kind

        def ready() -> bool:
            some = mail.has(self._group, lambda message: wanted(message) or of_other_dtype(message))
            return some is not None or all(rank in mail.ended for rank in sources)

        def finish() -> int:
            if not mail.wait_until(ready, self.timeout):
                raise absent(call, [self.ranks.index(rank) for rank in sources], self.timeout)
            message = mail.take(self._group, wanted)
            if message is None:
                other = mail.has(self._group, of_other_dtype)
                if other is not None:
                    dtype = DTYPES[other.kind % len(DTYPES)].name
                    raise mismatch(call, self.ranks.index(other.source), f"values of {dtype}")
                raise mismatch(call, self.ranks.index(sources[0]), mail.ended[sources[0]])
            rank = self.ranks.index(message.source)
            if (count := len(message.data)) != array.nbytes:
                raise mismatch(call, rank, f"{count} bytes, not {array.nbytes},")
            array.view(np.uint8)[...] = np.frombuffer(message.data, np.uint8)
            return rank

        return finish

    @staticmethod
    def _kind(dtype: DType, tag: int) -> int:
        return len(DTYPES) * tag + DTYPES.index(dtype)

    def tell(self, rank: int, kind: int, text: str) -> None:
        self.peers.mail.send(self.ranks[rank], self._group, CONTROL + kind, text.encode())

    def heard(self, kind: int, source: int | None = None) -> tuple[int, str] | None:
        def wanted(message: Message) -> bool:
            return message.kind == CONTROL + kind and source in (None, self.ranks.index(message.source))

        found = self.peers.mail.take(self._group, wanted)
        return None if found is None else (self.ranks.index(found.source), found.data.decode())

    # groups

    def split(self, groups: Sequence[Sequence[int]]) -> Transport | None:
        self._made += 1
        for number, ranks in enumerate(groups):
            if self.rank in ranks:
                name = f"{self.name}.{self._made}.{number}"
                return SocketTransport(self.peers, [self.ranks[rank] for rank in ranks], name, self.timeout)
        return None

    def copy(self) -> SocketTransport:
        """The same ranks by connections of their own; all of them call it."""
        self._made += 1
        return SocketTransport(self.peers, self.ranks, f"{self.name}.{self._made}", self.timeout)

    def close(self) -> None:
        self.peers.release(self.name)
        self._links.clear()
        if self.name == "all":
            atexit.unregister(self.close)
            self.peers.close(ENDED)
            sys.excepthook = sys.__excepthook__

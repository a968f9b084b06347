"""Mailbox: messages from and to every other rank, which a thread moves while others compute or wait.

A message is a header and bytes: the group that it belongs to, a number that says what it is, and its length. It is kept
until somebody asks for it, so that a sender never waits for a receiver.
"""

from __future__ import annotations

import hashlib
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Condition, Thread
from typing import NamedTuple

from ...backends.threads import on_this_device

HEADER = struct.Struct("<8sIQ")  # group, kind, bytes that follow
END = 0xFFFFFFFF  # the kind of a rank's last message, the text of why it ends
CHUNK = 1 << 18  # bytes for a call of the system
FLUSH_SECONDS = 5.0  # in which what is to be sent must leave, at the end
ENDED = "the end of its program"


def group_key(name: str) -> bytes:
    """8 bytes that stand for the name of a group."""
    return hashlib.sha256(name.encode()).digest()[:8]


class Message(NamedTuple):
    """What a rank has sent."""

    source: int
    group: bytes
    kind: int
    data: bytearray


class _Line:
    """A connection to a rank: what is to be sent, and what has been received of a message."""

    def __init__(self, rank: int, connection: socket.socket):
        self.rank, self.connection = rank, connection
        self.outgoing: deque[memoryview] = deque()
        self.sent = self.queued = 0  # bytes so far
        self._header, self._data = bytearray(HEADER.size), bytearray()
        self._filled = 0
        connection.setblocking(False)

    def write(self) -> None:
        """Send what the system takes. Raises OSError where the rank has ended."""
        while self.outgoing:
            part = self.outgoing[0]
            count = self.connection.send(part[:CHUNK])
            self.sent += count
            if count == len(part):
                self.outgoing.popleft()
            else:
                self.outgoing[0] = part[count:]

    def read(self) -> Message:
        """The next message. Raises BlockingIOError until it is whole, other OSErrors where the rank has ended."""
        while self._filled < HEADER.size:
            self._filled += self._into(memoryview(self._header)[self._filled :])
            if self._filled == HEADER.size:
                self._data = bytearray(HEADER.unpack(self._header)[2])
        while self._filled < HEADER.size + len(self._data):
            self._filled += self._into(memoryview(self._data)[self._filled - HEADER.size :][:CHUNK])
        group, kind, _ = HEADER.unpack(self._header)
        self._filled = 0
        return Message(self.rank, group, kind, self._data)

    def _into(self, place: memoryview) -> int:
        count = self.connection.recv_into(place)
        if not count:
            raise ConnectionResetError
        return count


class Mailbox:
    """Messages by the connections to other ranks. ended: why, of the ranks that have ended."""

    def __init__(self, connections: dict[int, socket.socket]):
        self._lines = {rank: _Line(rank, connection) for rank, connection in connections.items()}
        self._arrived: dict[bytes, list[Message]] = {}
        self._changed = Condition()
        self.ended: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._closing = False
        self._selector.register(self._woken, selectors.EVENT_READ)
        for line in self._lines.values():
            self._selector.register(line.connection, selectors.EVENT_READ, line)
        self._thread = Thread(target=on_this_device(self._run), name="ampkit-messages", daemon=True)
        self._thread.start()

    # from any thread

    def send(self, rank: int, group: bytes, kind: int, data: memoryview | bytes) -> Callable[[], bool]:
        """Begin to send `data`, flat bytes that stay as they are. -> whether it has left."""
        line = self._lines[rank]
        with self._changed:
            line.outgoing.append(memoryview(HEADER.pack(group, kind, len(data))))
            if len(data):
                line.outgoing.append(memoryview(data))
            line.queued += HEADER.size + len(data)
            end = line.queued
        self._wake.send(b"1")
        return lambda: line.sent >= end

    def take(self, group: bytes, wanted: Callable[[Message], bool]) -> Message | None:
        """The first message of a group that is `wanted`, which is removed; None where there is none."""
        with self._changed:
            waiting = self._arrived.get(group, [])
            found = next((number for number, message in enumerate(waiting) if wanted(message)), None)
            return None if found is None else waiting.pop(found)

    def has(self, group: bytes, wanted: Callable[[Message], bool]) -> Message | None:
        """`take` which leaves the message."""
        with self._changed:
            return next((message for message in self._arrived.get(group, []) if wanted(message)), None)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until `condition`, which messages that come or leave make true. -> whether it is."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def reason(self, rank: int) -> str:
        """Why a rank has ended whose connection has: the text that it sent, which may still be under way."""
        self.wait_until(lambda: rank in self.ended, 1.0)
        return self.ended.get(rank, ENDED)

    def close(self, why: str = ENDED) -> None:
        """Tell all ranks why this one ends, send what is to be sent, and disconnect."""
        if self._closing:
            return
        self._closing = True
        for rank in self._lines.keys() - self.ended.keys():
            self.send(rank, bytes(8), END, why.encode())
        self._wake.send(b"1")
        self._thread.join(FLUSH_SECONDS)
        self.close_here()

    def close_here(self) -> None:
        """Free the connections in this process."""
        self._closing = True
        for each in (self._wake, self._woken, *(line.connection for line in self._lines.values())):
            each.close()
        self._selector.close()

    # the thread

    def _run(self) -> None:
        deadline = None
        with suppress(OSError, ValueError):  # closed meanwhile
            while True:
                if self._closing:
                    deadline = deadline or time.monotonic() + FLUSH_SECONDS
                    if not any(line.outgoing for line in self._running()) or time.monotonic() > deadline:
                        return
                for key, events in self._selector.select(None if deadline is None else 0.1):
                    if key.data is None:
                        with suppress(BlockingIOError):
                            self._woken.recv(4096)
                    else:
                        self._serve(key.data, events)
                self._watch_for_room()

    def _running(self) -> Iterable[_Line]:
        return [line for rank, line in self._lines.items() if rank not in self.ended]

    def _watch_for_room(self) -> None:
        for line in self._running():
            room = selectors.EVENT_WRITE if line.outgoing else 0
            if self._selector.get_key(line.connection).events != selectors.EVENT_READ | room:
                self._selector.modify(line.connection, selectors.EVENT_READ | room, line)

    def _serve(self, line: _Line, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                with suppress(BlockingIOError):
                    while message := line.read():
                        self._deliver(message)
            if events & selectors.EVENT_WRITE:
                with self._changed, suppress(BlockingIOError):
                    line.write()
        except OSError:
            self._end(line, self.ended.get(line.rank, ENDED))
        with self._changed:
            self._changed.notify_all()

    def _deliver(self, message: Message) -> None:
        with self._changed:
            if message.kind == END:
                self._end(self._lines[message.source], message.data.decode(errors="replace"))
            else:
                self._arrived.setdefault(message.group, []).append(message)
            self._changed.notify_all()

    def _end(self, line: _Line, why: str) -> None:
        with self._changed:
            if line.rank not in self.ended:
                self.ended[line.rank] = why
                self._selector.unregister(line.connection)
            line.outgoing.clear()

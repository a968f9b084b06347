"""Peers: the connections of this process to those of all other ranks.

One to each rank carries messages, and ends with the rank. Collectives have connections of their own, one per group and
rank, which are made when they are first used: the rank with the higher number asks, the other one's listener accepts.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from contextlib import suppress
from threading import Condition
from typing import Any

from ..transport import Call, DistError, absent, call_site, mismatch
from .handshake import SECONDS, HandshakeError, Listener, connected, is_loopback, write_text
from .messages import Mailbox
from .rendezvous import Meeting, meet

LONGEST_START = 60.0  # seconds in which ranks that have met connect
LOOK = 0.1  # seconds between two looks whether a rank has ended
MESSAGES = ""  # the channel's name
_open: weakref.WeakSet[Peers] = weakref.WeakSet()


class Peers:
    """Connections to all ranks of `meeting`; every rank makes one. Raises what `meet` raises.

    timeout: seconds within which all ranks must come. mail: messages from and to them.
    """

    def __init__(self, meeting: Meeting, timeout: float):
        self.rank, self.size, self._key = meeting.rank, meeting.size, meeting.key
        self._channels: dict[tuple[str, int], socket.socket] = {}
        self._changed = Condition()
        self._mail: Mailbox | None = None
        self._listener = Listener(self._key, self._admit, meeting.host if is_loopback(meeting.host) else "")
        _open.add(self)
        try:
            self._addresses = meet(meeting, self._listener.port, timeout)
            call, limit = Call(meeting.says, call_site()), min(timeout, LONGEST_START)
            others = [rank for rank in range(self.size) if rank != self.rank]
            self._mail = Mailbox({rank: self.channel(MESSAGES, rank, call, limit) for rank in others})
        except BaseException:
            self.close()
            raise

    @property
    def mail(self) -> Mailbox:
        assert self._mail is not None
        return self._mail

    def _admit(self, connection: socket.socket, hello: Any) -> None:
        with self._changed:
            self._channels[hello["channel"], hello["rank"]] = connection
            self._changed.notify_all()

    def channel(self, name: str, rank: int, call: Call, timeout: float) -> socket.socket:
        """The connection to a rank by the name of a channel, which both ask for.

        Raises DistError for a rank that has ended, or does not ask for it within `timeout` seconds.
        """
        with self._changed:
            found = self._channels.get((name, rank))
        if found is None and rank < self.rank:
            found = self._channels[name, rank] = self._connected(name, rank, call)
        deadline = time.monotonic() + timeout
        while found is None:
            if self._mail is not None and rank in self._mail.ended:
                raise mismatch(call, rank, self._mail.ended[rank])
            if time.monotonic() > deadline:
                raise absent(call, [rank], timeout)
            with self._changed:
                self._changed.wait_for(lambda: (name, rank) in self._channels, LOOK)
                found = self._channels.get((name, rank))
        return found

    def _connected(self, name: str, rank: int, call: Call) -> socket.socket:
        host, port, on = self._addresses[rank]
        try:
            made = connected(host, port, self._key, SECONDS, on)
            write_text(made, {"rank": self.rank, "channel": name})
        except (OSError, HandshakeError) as error:
            if self._mail is not None and self._mail.wait_until(lambda: rank in self.mail.ended, 1.0):
                raise mismatch(call, rank, self._mail.ended[rank]) from None
            got = f"{host}:{port}: {error or type(error).__name__}"
            raise DistError(call.place, f"a connection to rank {rank}", got) from None
        return made

    def release(self, name: str) -> None:
        """Close the connections of a channel."""
        with self._changed:
            for key in [key for key in self._channels if key[0] == name]:
                self._channels.pop(key).close()

    def close(self, why: str | None = None) -> None:
        """Disconnect from all ranks, which hear why."""
        _open.discard(self)
        self._listener.close()
        if self._mail is not None:
            self._mail.close(*([] if why is None else [why]))
        for connection in self._channels.values():
            with suppress(OSError):  # ends what other threads of this process wait for
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close_here(self) -> None:
        """Free the connections of a forked process: as long as one holds them, the other ranks see no end."""
        self._listener.close_here()
        if self._mail is not None:
            self._mail.close_here()
        for connection in self._channels.values():
            connection.close()


def _after_fork() -> None:
    for peers in list(_open):
        peers.close_here()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

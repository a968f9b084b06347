"""Connections between ranks that prove to each other that they know a key; texts on them are JSON, never pickles.

The side that accepts begins with a random number. The other answers with one of its own and the HMAC-SHA256 of both,
and receives that of the first side. So the key itself is never sent, and a stranger's connection is closed. What
follows is neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from ...backends.threads import on_this_device

GREETING = b"AMPKIT1\n"
SECONDS = 30.0  # for a handshake, of a rank whose machine is busy
NONCE, PROOF = 16, 32  # bytes
LONGEST_TEXT = 16 << 20  # bytes
UNIX: int = getattr(socket, "AF_UNIX", -1)
ROOM = 4 << 20  # bytes under way in memory: ranks that share a core then wait for each other less often


class HandshakeError(Exception):
    """The other side does not have this side's key."""


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, side + nonces, "sha256")


def ask(connection: socket.socket, key: bytes) -> None:
    """The handshake of the side that connects. Raises HandshakeError, and OSError for what is no rank of ampkit."""
    greeting = read(connection, len(GREETING) + NONCE)
    if not greeting.startswith(GREETING):
        raise OSError("another program")
    nonces = greeting[len(GREETING) :] + (mine := secrets.token_bytes(NONCE))
    connection.sendall(mine + _proof(key, b"asks", nonces))
    if not hmac.compare_digest(read(connection, PROOF), _proof(key, b"answers", nonces)):
        raise HandshakeError


def answer(connection: socket.socket, key: bytes) -> None:
    """The handshake of the side that accepts. Raises HandshakeError, and OSError."""
    connection.settimeout(SECONDS)
    connection.sendall(GREETING + (mine := secrets.token_bytes(NONCE)))
    received = read(connection, NONCE + PROOF)
    nonces = mine + received[:NONCE]
    if not hmac.compare_digest(received[NONCE:], _proof(key, b"asks", nonces)):
        connection.sendall(bytes(PROOF))
        raise HandshakeError
    connection.sendall(_proof(key, b"answers", nonces))


def read(connection: socket.socket, count: int) -> bytes:
    """The next `count` bytes. Raises OSError where the connection ends before."""
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the connection ended")
        data += part
    return bytes(data)


def write_text(connection: socket.socket, value: Any) -> None:
    """Send a value of JSON."""
    text = json.dumps(value).encode()
    connection.sendall(struct.pack("<I", len(text)) + text)


def read_text(connection: socket.socket) -> Any:
    """Receive a value of JSON. Raises OSError for what is none."""
    (length,) = struct.unpack("<I", read(connection, 4))
    if length > LONGEST_TEXT:
        raise OSError(f"a text of {length} bytes")
    try:
        return json.loads(read(connection, length))
    except ValueError:
        raise OSError("a text that is no JSON") from None


def machine() -> str:
    """What stands for this machine since its start; "" where the system has no sockets by such names."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def connected(host: str, port: int, key: bytes, seconds: float, on: str = "") -> socket.socket:
    """A connection to a Listener that has the key. on: its machine; if it is this one, memory carries the bytes.

    seconds: for each answer of the other side.

    Raises HandshakeError, and OSError where there is no listener.
    """
    connection = _opened(host, port, seconds, on)
    try:
        if connection.family != UNIX and connection.getsockname() == connection.getpeername():
            raise OSError("no listener")  # the system gave it the port that it asks for
        connection.settimeout(seconds)
        ask(connection, key)
        prepared(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(host: str, port: int, seconds: float, on: str) -> socket.socket:
    if on and on == machine():
        connection = socket.socket(UNIX)
        try:
            connection.connect(_name(port))
            return connection
        except OSError:  # a container of its own
            connection.close()
    return socket.create_connection((host, port), timeout=seconds)


def _name(port: int) -> str:
    return f"\0ampkit-{port}"  # of Linux's abstract names, which end with the socket


def prepared(connection: socket.socket) -> None:
    """Make it send at once, and notice within a minute or two that the other machine is gone."""
    connection.settimeout(None)
    if connection.family == UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 5)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_loopback(host: str) -> bool:
    """Whether a host names this machine to itself alone: `localhost`, 127.0.0.1, ::1."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class Listener:
    """Accepts connections of those who know the key, until it is closed, on threads of its own.

    admitted: called with each connection and the JSON value that it sent first. host: where others reach this machine;
    for a loopback address only this machine can connect. port: 0 for any.
    Raises OSError for a port that is taken.
    """

    def __init__(self, key: bytes, admitted: Callable[[socket.socket, Any], None], host: str, port: int = 0):
        self._key, self._admitted, self.refused = key, admitted, 0
        if is_loopback(host):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server(("127.0.0.1" if host == "localhost" else host, port), family=family)
        elif socket.has_dualstack_ipv6():
            self._socket = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._socket = socket.create_server(("", port))
        self.port: int = self._socket.getsockname()[1]
        self._sockets = [self._socket]
        if machine():
            with suppress(OSError):  # another network of the same machine may have the port, too
                self._sockets.append(_named(self.port))
        for each in self._sockets:
            _thread(self._accept, each)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed
                return
            _thread(self._examine, connection)

    def _examine(self, connection: socket.socket) -> None:
        try:
            answer(connection, self._key)
            hello = read_text(connection)
            prepared(connection)
        except (OSError, HandshakeError) as error:
            self.refused += isinstance(error, HandshakeError)
            connection.close()
        else:
            self._admitted(connection, hello)

    def close(self) -> None:
        """Accept no more."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread, which close() alone does not
            each.close()

    def close_here(self) -> None:
        """Forget it in a process that was forked, without an effect on the one that has it."""
        for each in self._sockets:
            each.close()


def _named(port: int) -> socket.socket:
    made = socket.socket(UNIX)
    made.bind(_name(port))
    made.listen()
    return made


def _thread(target: Callable[..., None], *args: Any) -> None:
    Thread(target=on_this_device(target), args=args, name="ampkit-listener", daemon=True).start()

"""Answers from the web at a minimum pace: a server that sends a byte now and then cannot hold a download for ever.

A socket's timeout begins anew with every byte; the one here covers the status line, the headers and the content.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from typing import Any

PACE = 1024  # bytes a second


def urlopen(request: urllib.request.Request, timeout: float) -> Any:
    """The answer to `request`, as of urllib. timeout: seconds to connect, and for `timeout` times `PACE` bytes to come.

    Raises urllib's errors, and TimeoutError, also while the answer is read, if fewer come.
    """
    return urllib.request.build_opener(_HTTP, _HTTPS).open(request, timeout=timeout)


class _HTTP(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _HTTPS(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req)


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any):
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_Paced(sock))


class _Connection(http.client.HTTPConnection):
    response_class = _Response


class _SecureConnection(http.client.HTTPSConnection):
    response_class = _Response


class _Paced(io.RawIOBase):
    """What a socket receives. Raises TimeoutError if fewer than `PACE` bytes a second come within its timeout."""

    def __init__(self, sock: socket.socket):
        self._socket, self._raw = sock, sock.makefile("rb", buffering=0)
        self._seconds = sock.gettimeout() or 0.0
        self._begin()

    def _begin(self) -> None:
        self._due, self._missing = time.monotonic() + self._seconds, PACE * self._seconds

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As of a socket's file."""
        left = self._due - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"fewer than {PACE} bytes a second for {self._seconds:g} s")
        self._socket.settimeout(left)
        count = self._raw.readinto(buffer)
        self._missing -= count or 0
        if self._missing <= 0:
            self._begin()
        return count

    def close(self) -> None:
        """Close the socket's file."""
        self._raw.close()
        super().close()

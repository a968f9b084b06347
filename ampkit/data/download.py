"""Downloads of files of known size and SHA-256: once, resumed where they broke off, with a minimum throughput."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http
import http.client
import io
import os
import socket
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..base.errors import FileError
from ..base.files import opened

_CHUNK = 2**20
MIN_THROUGHPUT = 1024  # bytes a second
_WHERE = "download"
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True)
class Source:
    """A file on the web: its URL, its size in bytes and its SHA-256 in hexadecimal digits."""

    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file: the last part of its URL."""
        return self.url.rpartition("/")[2]


def fetch(source: Source, folder: str | Path, timeout: float = 30.0) -> Path:
    """Download the file of `source` into `folder` unless it exists. -> its path.

    It is written to `<name>.part`, and renamed once it is complete and its SHA-256 is right. A later call resumes an
    incomplete file if the server supports ranges. timeout: seconds to connect; then at least 1 KiB per second of each
    `timeout` seconds has to arrive.
    Raises FileError for an existing file with another content (which is left unchanged), for a server that does not
    respond, breaks off or is slower, for a wrong size or checksum, for a `<name>.part` that is a link or no regular
    file, and if another process is downloading it.
    """
    path = Path(folder) / source.name
    if not path.exists():
        try:
            _download(source, path, timeout)
        except FileError:
            raise
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ValueError) as error:
            cure = f"call again, or download it by hand and put it at {path}"
            raise FileError(_WHERE, f"a response of {source.url}", _reason(error), cure) from None
        except OSError as error:
            raise FileError(_WHERE, f"to write {path}", f"{error.strerror or error}") from None
    verify(path, source, f"move {path} away, and it is downloaded again")
    return path


def verify(path: Path, source: Source, cure: str | None = None) -> None:
    """Raise FileError unless the file at `path` has the size and SHA-256 of `source`."""
    with opened(path, _WHERE) as file:
        size = os.fstat(file.fileno()).st_size
        if size != source.size:
            raise FileError(_WHERE, f"{source.name} of {source.size} bytes", f"{size}", cure)
        found = hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()
    if found != source.sha256:
        raise FileError(_WHERE, f"{source.name} with SHA-256 {source.sha256}", found, cure)


def _download(source: Source, path: Path, timeout: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with open(part, "ab", opener=_regular_file) as file, _locked(file, part):
        if path.exists():  # another process finished it, and `file` is what it renamed
            return
        have = _size(file, part)
        if have > source.size:
            file.truncate(have := 0)
        if have < source.size:
            _receive_rest(source, file, have, timeout)
        file.flush()
        os.fsync(file.fileno())
        try:
            verify(part, source, "call again: it is downloaded anew")
        except FileError:
            part.unlink()  # resuming from wrong bytes could never succeed
            raise
        part.replace(path)


def _regular_file(path: str, flags: int) -> int:
    # Opening a link would write the bytes into another file.
    try:
        return os.open(path, flags | _NO_LINKS, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        raise _not_a_regular_file(path) from None


def _not_a_regular_file(part: Path | str) -> FileError:
    return FileError(_WHERE, f"{part} for itself", "a link or no regular file", "remove it, then call again")


@contextmanager
def _locked(file: BinaryIO, part: Path) -> Iterator[None]:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        got = "another process that downloads it"
        raise FileError(_WHERE, f"{part} for itself", got, "wait for that one, then call again") from None
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # closing it would not: a child forked meanwhile has it open too


def _size(file: BinaryIO, part: Path) -> int:
    """The bytes of `part` so far. Raises FileError if its bytes would go elsewhere: it has other names, or none."""
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise _not_a_regular_file(part)
    return found.st_size


def _receive_rest(source: Source, file: BinaryIO, have: int, timeout: float) -> None:
    try:
        _receive(source, file, have, timeout)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        file.truncate(0)  # else every later call would ask for the same range
        _receive(source, file, 0, timeout)


def _receive(source: Source, file: BinaryIO, have: int, timeout: float) -> None:
    """Append what is missing after `have` bytes. Raises FileError if the server sends less, or more."""
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    opener = urllib.request.build_opener(_HTTP, _HTTPS)
    with opener.open(urllib.request.Request(source.url, headers=headers), timeout=timeout) as response:
        content_range = response.headers.get("Content-Range", "")
        if response.status != 206 or not content_range.startswith(f"bytes {have}-"):
            file.truncate(have := 0)  # a server without ranges starts at 0
        for chunk in _chunks(response):
            have += len(chunk)
            if have > source.size:
                file.truncate(0)
                raise FileError(_WHERE, f"{source.size} bytes from {source.url}", "more")
            file.write(chunk)
    if have < source.size:
        cure = "call again: it goes on from there"
        raise FileError(_WHERE, f"{source.size} bytes from {source.url}", f"{have}, then the end", cure)


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read1(_CHUNK):
            yield chunk
    except http.client.IncompleteRead as error:
        yield error.partial


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error or type(error).__name__)


# urllib's responses with a minimum throughput. A socket's timeout restarts with every byte; this one also covers
# `timeout` seconds of status line, headers and content, in which `MIN_THROUGHPUT` times `timeout` bytes have to arrive.


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
        self.fp = io.BufferedReader(_ThroughputReader(sock))


class _Connection(http.client.HTTPConnection):
    response_class = _Response


class _SecureConnection(http.client.HTTPSConnection):
    response_class = _Response


class _ThroughputReader(io.RawIOBase):
    """The bytes that a socket receives. Raises TimeoutError below `MIN_THROUGHPUT` within the socket's timeout."""

    def __init__(self, sock: socket.socket):
        self._socket, self._raw = sock, sock.makefile("rb", buffering=0)
        self._seconds = sock.gettimeout() or 0.0
        self._restart()

    def _restart(self) -> None:
        self._deadline, self._expected = time.monotonic() + self._seconds, MIN_THROUGHPUT * self._seconds

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what the socket has received into `buffer`; the number of bytes, as io.RawIOBase specifies."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"fewer than {MIN_THROUGHPUT} bytes a second for {self._seconds:g} s")
        self._socket.settimeout(left)
        count = self._raw.readinto(buffer)
        self._expected -= count or 0
        if self._expected <= 0:
            self._restart()
        return count

    def close(self) -> None:
        """Close the socket's file."""
        self._raw.close()
        super().close()

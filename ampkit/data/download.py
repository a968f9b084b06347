"""Downloads: a file of known size and SHA-256, fetched once, taken up again where it broke off."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http
import http.client
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..base.errors import FileError
from ..base.files import opened
from . import paced_download

_CHUNK = 2**20
_WHERE = "download"
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True)
class Source:
    """A file on the web: where it lies, how many bytes it has, and their SHA-256 in hexadecimal digits."""

    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """What the file is called: the last part of its URL."""
        return self.url.rpartition("/")[2]


def fetch(source: Source, folder: str | Path, timeout: float = 30.0) -> Path:
    """The file of `source` in `folder`, downloaded unless it is there. -> its path.

    It gets its name only when it is whole and has its SHA-256; until then its bytes lie beside it under `<name>.part`,
    and a later call goes on from there, if the server can. timeout: seconds to connect, and seconds in which at least
    1 KiB for each of them has to come.
    Raises FileError for a file there that is another one (it is left as it is), for a server that does not answer,
    breaks off or is slower than that, for a wrong size or sum, for a `<name>.part` that is a link or no regular file,
    and if another process downloads it right now.
    """
    path = Path(folder) / source.name
    if not path.exists():
        try:
            _download(source, path, timeout)
        except FileError:
            raise
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ValueError) as error:
            cure = f"call again, or download it by hand and put it at {path}"
            raise FileError(_WHERE, f"an answer of {source.url}", _reason(error), cure) from None
        except OSError as error:
            raise FileError(_WHERE, f"to write {path}", f"{error.strerror or error}") from None
    verify(path, source, f"move {path} away, and it is downloaded again")
    return path


def verify(path: Path, source: Source, cure: str | None = None) -> None:
    """Nothing for a file that is the one of `source`. Raises FileError if its size or its SHA-256 is another."""
    with opened(path, _WHERE) as file:
        size = os.fstat(file.fileno()).st_size
        if size != source.size:
            raise FileError(_WHERE, f"{source.name} of {source.size} bytes", f"{size}", cure)
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise FileError(_WHERE, f"{source.name} with SHA-256 {source.sha256}", found, cure)


def _download(source: Source, path: Path, timeout: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with open(part, "ab", opener=_of_its_own) as file, _locked(file, part):
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
            part.unlink()  # going on from wrong bytes would never end well
            raise
        part.replace(path)


def _of_its_own(path: str, flags: int) -> int:
    # A link would lead the bytes into another file.
    try:
        return os.open(path, flags | _NO_LINKS, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        raise _not_of_its_own(path) from None


def _not_of_its_own(part: Path | str) -> FileError:
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
        raise _not_of_its_own(part)
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
    with paced_download.urlopen(urllib.request.Request(source.url, headers=headers), timeout) as answer:
        if not _goes_on(answer, have):
            file.truncate(have := 0)
        for chunk in _chunks(answer):
            have += len(chunk)
            if have > source.size:
                file.truncate(0)
                raise FileError(_WHERE, f"{source.size} bytes from {source.url}", "more")
            file.write(chunk)
    if have < source.size:
        cure = "call again: it goes on from there"
        raise FileError(_WHERE, f"{source.size} bytes from {source.url}", f"{have}, then the end", cure)


def _goes_on(answer: http.client.HTTPResponse, have: int) -> bool:
    """Whether the answer begins at byte `have`; a server without ranges begins at 0."""
    return answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := answer.read1(_CHUNK):
            yield chunk
    except http.client.IncompleteRead as error:
        yield error.partial


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error or type(error).__name__)

"""Read files from outside safely: regular files only, no more bytes than needed, and FileError for library errors.

with opened(path, "idx") as file:
    stream = Stream(gzip.GzipFile(fileobj=file), str(path), "a whole gzip file")
    values = read(stream, count)
    with foreign(str(path), "a dtype of NumPy"):
        dtype = np.dtype(name)
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from .errors import AmpkitError, FileError

_CHUNK = 2**20
_LINE = 200  # characters of another library's message that are shown
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


@contextmanager
def foreign(where: str, needs: str, cure: str | None = None) -> Iterator[None]:
    """Context manager: turn errors that are not ampkit's own into a FileError `where: needs ..., got one that breaks`.

    Use it only around calls in which a library parses bytes of a file: libraries raise errors of any type for malformed
    input, and elsewhere the same types are bugs. The library's error becomes the cause of the FileError.
    """
    try:
        yield
    except AmpkitError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not panicked(error):
            raise
        raise FileError(where, needs, f"one that breaks: {reason(error)}", cure) from error


def panicked(error: BaseException) -> bool:
    """Whether `error` is a panic of a library written in Rust, which derives from BaseException, not Exception."""
    return type(error).__name__ == "PanicException"


def reason(error: BaseException) -> str:
    """The message of `error` in one line of at most 200 characters."""
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said = (getattr(error, "strerror", None) or str(error)).strip() or type(error).__name__
    return str(said).splitlines()[0][:_LINE]


def opened(path: str | os.PathLike[str], where: str) -> BinaryIO:
    """Open a regular file for reading in binary. Raises FileError if it cannot; never blocks on a FIFO or a device."""
    try:
        _need_regular(path, where, Path(path).stat().st_mode)
        file = open(path, "rb", opener=_open_nonblocking)  # noqa: SIM115
    except (OSError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(where, "a file that can be read", f"{os.fspath(path)!r}: {reason(error)}") from None
    try:
        # The path may have been replaced between stat and open.
        _need_regular(path, where, os.fstat(file.fileno()).st_mode)
    except FileError:
        file.close()
        raise
    return file


def read(file: Any, most: int) -> bytes:
    """Read at most `most` bytes of a file or stream; allocates for the bytes that are read, not for `most`."""
    parts, left = [], most
    while left > 0 and (part := file.read(min(left, _CHUNK))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def content(path: str | os.PathLike[str], where: str, most: int | None = None) -> bytes:
    """Read all bytes of a regular file. Raises FileError if it cannot be read or has more than `most` bytes."""
    with opened(path, where) as file, foreign(where, f"a file that can be read at {os.fspath(path)!r}"):
        if most is None:
            return file.read()
        found = read(file, most + 1)
    if len(found) > most:
        raise FileError(where, f"at most {most} bytes", f"more in {os.fspath(path)!r}")
    return found


class Stream:
    """A stream of a library (gzip, zip ...) whose errors become FileErrors, as by `foreign`.

    Reading more than `most` bytes in all raises FileError too.
    """

    def __init__(self, file: Any, where: str, needs: str, cure: str | None = None, most: int = sys.maxsize):
        self._file, self._described, self._most, self._left = file, (where, needs, cure), most, most

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes."""
        with foreign(*self._described):
            data: bytes = self._file.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise FileError(self._described[0], f"at most {self._most} bytes when it is unpacked", "more")
        return data


def _need_regular(path: str | os.PathLike[str], where: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise FileError(where, "a regular file", f"{os.fspath(path)!r}, which is {kind}")


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))

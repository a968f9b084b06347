"""An exclusive lock on a file, which names its holder: two runs never write to one directory."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from datetime import datetime
from pathlib import Path

from .errors import FileError

LOCK_NAME = "ampkit.lock"


class HeldError(FileError):
    """Another process holds the lock."""


class Lock:
    """An exclusive lock on the file `path`, which names the holder: process, machine and start time.

    Held from construction to `release`, which removes the file; a process that is killed leaves the file, unlocked.
    where: the name of what is locked, for errors. Raises HeldError, which names the holder; OSError if the file cannot
    be created.
    """

    def __init__(self, path: Path, where: str):
        self.path, self._handle = path, _locked(path, where)
        started = datetime.now().astimezone().isoformat(timespec="seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()}, started {started}\n"
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, holder.encode(), 0)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Remove the file and release the lock."""
        self.path.unlink(missing_ok=True)
        os.close(self._handle)


def _locked(path: Path, where: str) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, handle):
                return handle
        except BlockingIOError:
            holder = _holder(handle)
            os.close(handle)
            cure = "wait for that run to end, or give another --run-dir"
            raise HeldError(where, f"{str(path.parent)!r} for itself", f"{holder}, which writes there", cure) from None
        except OSError:
            os.close(handle)
            raise
        os.close(handle)  # its holder removed the file between the two calls: the name is now another file


def _holder(handle: int) -> str:
    # A holder names itself right after it has locked the file.
    for _ in range(100):
        if name := os.pread(handle, 1000, 0).decode("utf-8", "replace").strip():
            return name
        time.sleep(0.01)
    return "another process"


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False

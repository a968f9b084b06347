"""Write files: a new file takes the place of an old one at once, with the old one's permissions.

Every file that the library writes whole is written by `write`. A reader sees the old bytes or the new ones, and so does
whoever looks after a crash.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from .errors import FileError

_NEW = 0o666  # the mode of a new file, of which the system takes the umask away
_NAME = 48  # characters of the file's name in a temporary one, which a file system limits to 255 bytes


def write(where: str, f: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to the file `f` atomically; a symbolic link stays, and the file that it names is written.

    An existing file keeps its mode and, where the system allows it, its owner and group. A device or a FIFO is written
    to. Raises FileError, which names `where`, if that fails, as for a file that may not be written.
    """
    try:
        _write(Path(os.path.realpath(f)), data)
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        got = f"{os.fspath(f)}: {getattr(error, 'strerror', None) or error}"
        raise FileError(where, "a file that can be written", got) from error


def _write(path: Path, data: bytes) -> None:
    old = _status(path)
    if old is not None and not stat.S_ISREG(old.st_mode):
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name[:_NAME]}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _NEW if old is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if old is not None:
                _give_mode(file.fileno(), old)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise


def _status(path: Path) -> os.stat_result | None:
    """What is at `path`, which is no link to anything. Raises OSError for what may not be written."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):  # resolved, and still a link: one to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return found


def _give_mode(handle: int, old: os.stat_result) -> None:
    for ids in ((old.st_uid, -1), (-1, old.st_gid)):
        with contextlib.suppress(PermissionError):  # only the superuser may give a file away
            os.fchown(handle, *ids)
    os.fchmod(handle, stat.S_IMODE(old.st_mode))

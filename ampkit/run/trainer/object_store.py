"""A run directory on an object store, by fsspec: `s3://bucket/runs/a`, `gs://...`, and whatever else fsspec knows.

The run writes to a directory of this machine. After each checkpoint, and at the end, what changed is uploaded: states
first, then the metrics and the rest, then the manifests; only then are older checkpoints deleted from the store. An
object appears whole or not at all, and a manifest has the checksums of its state and of the rows: so an interrupted
upload leaves the last checkpoint in place, as a crash does on a disk. docs/decisions/0043 says why.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Self

from ...backends.threads import on_this_device
from ...base.errors import ConfigError, FileError
from ...base.file_lock import LOCK_NAME, HeldError
from ...base.files import reason
from ..run_dir import RunDirectory

_WHERE = "run directory"
RENEWED = 30.0  # seconds after which the holder of the lock writes it again
ABANDONED = 90.0  # seconds without that, after which a run that resumes takes it over
LOOK = 1.0


def is_url(path: str | Path | None) -> bool:
    """Whether a run directory is one of an object store."""
    return path is not None and "://" in str(path)


class Store:
    """The files below a URL. Raises ConfigError where fsspec, or what it needs for the URL, is missing."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        try:
            from fsspec.core import url_to_fs

            self._fs, self._root = url_to_fs(self.url)
        except ImportError as error:
            cure = "pip install 'ampkit[store]'" if error.name == "fsspec" else "pip install s3fs, gcsfs or adlfs"
            raise ConfigError("--run-dir", "fsspec and its driver for the URL", reason(error), cure) from None
        except ValueError as error:
            raise ConfigError("--run-dir", "a URL that fsspec knows, such as s3://bucket/run", reason(error)) from None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _errors(self, needs: str) -> Iterator[None]:
        # Drivers raise errors of their own: of the network, of rights, of a quota.
        try:
            yield
        except FileError:
            raise
        except Exception as error:
            got, cure = f"{self.url}: {reason(error)}", "give another --run-dir, or make room"
            raise FileError(_WHERE, needs, got, cure) from error

    def names(self) -> list[str]:
        """The files, by their paths below the URL."""
        with self._errors("an object store that can be read"):
            self._fs.invalidate_cache()
            start = len(str(self._root)) + 1
            return sorted(str(path)[start:] for path in self._fs.find(self._root))

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None if there is none."""
        with self._errors("an object store that can be read"):
            try:
                data: bytes = self._fs.cat_file(self._path(name))
            except FileNotFoundError:
                return None
            return data

    def write(self, name: str, data: bytes, new: bool = False) -> None:
        """Write a file. new: raise FileExistsError where there is one."""
        path = self._path(name)
        with self._errors("an object store that can be written"):
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            if new:
                try:
                    self._fs.pipe_file(path, data, mode="create")
                except FileExistsError:
                    raise HeldError(_WHERE, f"{self.url!r} for itself", "another run, which writes there") from None
            else:
                self._fs.pipe_file(path, data)
            self._fs.invalidate_cache()
            if (size := self._fs.info(path)["size"]) != len(data):
                raise FileError(_WHERE, f"{len(data)} bytes written", f"{self.url}/{name} of {size}")

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        with self._errors("an object store whose files can be deleted"), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def fetch(self, folder: Path) -> list[str]:
        """Copy all files but the lock to a folder. -> their names."""
        names = [name for name in self.names() if name != LOCK_NAME]
        for name in names:
            if not (folder / name).resolve().is_relative_to(folder.resolve()):
                raise FileError(_WHERE, "files below it", f"{self.url}/{name}")
            data = self.read(name)
            if data is not None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
        return names


class StoreLock:
    """An object that names who writes to a store. Its holder renews it; stores have no locks that end with a process.

    takes_over: wait until an abandoned one is not renewed, and replace it. Raises HeldError for one that is held.
    """

    def __init__(self, store: Store, takes_over: bool):
        self._store, self._token, self._count = store, secrets.token_hex(8), 0
        self._one = RLock()  # of the two threads reads or writes it
        try:
            store.write(LOCK_NAME, self._text(), new=True)
        except HeldError:
            self._need_abandoned(takes_over)
            store.write(LOCK_NAME, self._text())
            time.sleep(min(LOOK, RENEWED))  # another one may have done the same
        self.check()
        self._end = Event()
        self._thread = Thread(target=on_this_device(self._renew), name="ampkit-store-lock", daemon=True)
        self._thread.start()

    def _text(self) -> bytes:
        self._count += 1
        return f"process {os.getpid()} on {socket.gethostname()}, {self._token}, {self._count}\n".encode()

    def _need_abandoned(self, takes_over: bool) -> None:
        first, deadline = self._store.read(LOCK_NAME), time.monotonic() + (ABANDONED if takes_over else 0.0)
        while takes_over and time.monotonic() < deadline and self._store.read(LOCK_NAME) == first:
            time.sleep(LOOK)
        if not takes_over or self._store.read(LOCK_NAME) not in (first, None):
            holder = (first or b"another run").decode("utf-8", "replace").rpartition(", ")[0].partition(",")[0]
            cure = "wait for that run to end; --resume takes over from one that was killed"
            raise HeldError(_WHERE, f"{self._store.url!r} for itself", f"{holder}, which writes there", cure)

    def check(self) -> None:
        """Raise HeldError where another run has taken the store over."""
        with self._one:
            found = self._store.read(LOCK_NAME)
        if found is None or self._token.encode() not in found:
            raise HeldError(_WHERE, f"{self._store.url!r} for itself", "another run, which has taken it over")

    def _renew(self) -> None:
        while not self._end.wait(RENEWED):
            with self._one, suppress(FileError):  # the next upload says what is wrong
                self.check()
                self._store.write(LOCK_NAME, self._text())

    def release(self) -> None:
        """Delete it, if it is still this run's."""
        self._end.set()
        self._thread.join()
        with suppress(FileError):
            self.check()
            self._store.delete(LOCK_NAME)


class StoredRunDirectory(RunDirectory):
    """A run directory on an object store; see the module. `path` is its copy on this machine.

    If an upload fails, that copy stays, and the error says where. Raises what RunDirectory raises, and FileError for a
    store that cannot be read or written.
    """

    def __init__(self, url: str, resume: bool = False):
        self.store = Store(url)
        super().__init__(tempfile.mkdtemp(prefix="ampkit-run-"), resume)
        self.name = self.store.url
        self._store_lock: StoreLock | None = None
        self._uploaded: dict[str, tuple[int, int]] = {}  # size and time of change, by name
        self._keeps_copy = False

    def __enter__(self) -> Self:
        try:
            self._store_lock = StoreLock(self.store, self.resume)
            names = self.store.fetch(self.path)
            self._uploaded = {name: _state(self.path / name) for name in names}
            super().__enter__()
        except BaseException:
            self._leave()
            raise
        return self

    def _need_no_other_files(self) -> None:
        try:
            super()._need_no_other_files()
        except FileError as error:
            raise FileError(str(error).replace(str(self.path), self.name)) from None

    def __exit__(self, *error: object) -> None:
        try:
            if self._log is not None and self._log.size and not self._keeps_copy:
                self.upload()
        finally:
            super().__exit__(*error)
            self._leave()

    def _leave(self) -> None:
        if self._store_lock is not None:
            self._store_lock.release()
            self._store_lock = None
        if not self._keeps_copy:
            shutil.rmtree(self.path, ignore_errors=True)

    def upload(self) -> None:
        """Write what has changed to the store, and delete there what is deleted here."""
        assert self._store_lock is not None
        try:
            self._store_lock.check()
            found = {name: _state(self.path / name) for name in self._names()}
            changed = [name for name, state in found.items() if self._uploaded.get(name) != state]
            for name in sorted(changed, key=_order):
                self.store.write(name, (self.path / name).read_bytes())
                self._uploaded[name] = found[name]
            for name in self._uploaded.keys() - found.keys():
                self.store.delete(name)
                del self._uploaded[name]
        except (FileError, OSError) as error:
            self._keeps_copy = True
            raise FileError(f"{error}\nThe files of the run are in {self.path}") from error

    def _names(self) -> list[str]:
        files = [path for path in self.path.rglob("*") if path.is_file() and not path.name.startswith(".")]
        return [str(path.relative_to(self.path)) for path in files if path.name != LOCK_NAME]


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _order(name: str) -> tuple[int, str]:
    """States come first and manifests last."""
    manifest = name.startswith("checkpoints/") and name.endswith(".json")
    return (2 if manifest else 0 if name.endswith(".safetensors") else 1), name


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """A copy of a run on this machine while the block lasts, for ranks that only read its checkpoints."""
    with tempfile.TemporaryDirectory(prefix="ampkit-run-") as folder:
        Store(url).fetch(Path(folder))
        yield Path(folder)

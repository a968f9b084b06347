"""The run directory: `config.toml` (the complete recipe), `metrics.jsonl`, `environment.jsonl` (where each start ran),
`checkpoints/`, a lock while it runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import metadata
from itertools import count
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Self

from ..base.atomic_file import write
from ..base.errors import FileError
from ..base.file_lock import LOCK_NAME, HeldError, Lock
from ..config import Recipe, continued, dump, load
from .doctor import examine
from .metrics_log import MetricsLog, ResumePoint, back_up

_WHERE = "run directory"


def default_directories(recipe: str | Path, dtype: str, now: datetime, root: str | Path = "runs") -> Iterator[Path]:
    """`runs/<recipe>-<dtype>-<timestamp>`, then the same with a number appended: those that do not exist."""
    stem = f"{Path(recipe).stem}-{dtype.replace(' ', '-')}-{now:%Y%m%d-%H%M%S}"
    names = (Path(root) / (stem if i == 1 else f"{stem}-{i}") for i in count(1))
    return (name for name in names if not name.exists())


class RunDirectory:
    """A run directory, created and locked while its `with` block lasts.

    path: the directory. resume: whether it may hold a run to resume. If the block ends before a row is written, the
    files and directories created here are removed again.
    Raises FileError on entry if another process has locked it (HeldError, which names that process), if it holds files
    without `resume`, or something other than a run with it, or if it cannot be written.
    """

    def __init__(self, path: str | Path, resume: bool = False):
        self.path, self.resume = Path(path), resume
        self.name = str(path)  # as users know it
        self.config, self.metrics = self.path / "config.toml", self.path / "metrics.jsonl"
        self.environment = self.path / "environment.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.notices: list[str] = []  # a line for each damaged file
        self._lock: Lock | None = None
        self._log: MetricsLog | None = None
        self._created: list[Path] = []  # directories, inner ones last
        self._written: list[Path] = []  # files that did not exist before

    @classmethod
    def first_free(cls, paths: Iterable[Path]) -> Self:
        """The first of `paths`, entered, that no other process has locked."""
        for path in paths:
            with suppress(HeldError):
                return cls(path).__enter__()
        raise FileError(_WHERE, "one that is free", "none")

    def __enter__(self) -> Self:
        with self._undone_on_error(), _os_errors_as_file_error(self.path):
            if self._lock is None:  # else `first_free` has entered it
                self._lock = self._create_and_lock()
            self._need_no_other_files()
        return self

    def __exit__(self, *error: object) -> None:
        if self._log is None or not self._log.size:
            if self.checkpoints in self._created:
                self._written += self.checkpoints.glob("kernels*.json")
            for path in self._written:
                path.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()
        for path in reversed(self._created):
            with suppress(OSError):  # it holds files
                path.rmdir()

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.__exit__()
            raise

    def _create_and_lock(self, tries: int = 10) -> Lock:
        self._create()
        try:
            return Lock(self.path / LOCK_NAME, _WHERE)
        except FileNotFoundError:  # the failed start of another process removed the directory meanwhile
            if tries == 1:
                raise
            return self._create_and_lock(tries - 1)

    def _create(self) -> None:
        if "\0" in str(self.path):
            raise FileError(_WHERE, "a path without NUL", repr(str(self.path)), "give another --run-dir")
        inner = self.path, self.checkpoints  # the second one by who writes to it
        self._created = [path for path in (*reversed(self.path.parents), *inner) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)

    def _need_no_other_files(self) -> None:
        """Raise FileError for files that do not belong to the run."""
        run = self.config.exists() or any(self.checkpoints.glob("step-*.json"))
        # A process killed while it wrote config.toml leaves its lock and a temporary file.
        ours = (f".{self.config.name}.", LOCK_NAME)
        if (run and self.resume) or all(path.name.startswith(ours) for path in self.path.iterdir()):
            return
        needs = "one that holds a run, or a new one" if self.resume else "a new or empty one"
        what, cure = ("a run", "add --resume to resume it, or ") if run else ("files", "")
        raise FileError(_WHERE, needs, f"{str(self.path)!r}, which holds {what}", f"{cure}give another --run-dir")

    def begin(
        self,
        recipe: Recipe,
        after: ResumePoint | None = None,
        mark: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> MetricsLog:
        """Write config.toml and open the metrics log of a run of `recipe`; after, mark: see MetricsLog.

        about: what environment.jsonl notes of this start beside the machine.

        Raises ConfigError if a run without a checkpoint had another recipe, FileError for what cannot be written.
        """
        with _os_errors_as_file_error(self.path):
            self._check_config(recipe, compare=after is None)
            self._track_new(self.config, lambda: write(_WHERE, self.config, _with_checksum(dump(recipe).encode())))
            self._track_new(self.environment, lambda: self._note_environment(after, about or {}))
            self._log = self._track_new(self.metrics, lambda: MetricsLog(self.metrics, after, mark))
        self.notices += self._log.notices
        return self._log

    def _note_environment(self, after: ResumePoint | None, about: Mapping[str, Any]) -> None:
        """Append a line: after which step the run starts here, and what is here."""
        row = environment(0 if after is None else after.done, about)
        with self.environment.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _track_new(self, path: Path, make: Callable[[], Any]) -> Any:
        if not os.path.lexists(path):
            self._written.append(path)
        return make()

    def _check_config(self, recipe: Recipe, compare: bool) -> None:
        """Back up a config.toml that was changed, with a notice; compare an unchanged one with `recipe`."""
        try:
            data = self.config.read_bytes()
        except FileNotFoundError:
            return
        # One written before there were checksums begins with a table.
        if data != _with_checksum(data.partition(b"\n")[2]) and not data.startswith(b"["):
            copy = back_up(self.config, data, "damaged")
            self.notices.append(f"{self.config}: changed since it was written, now as {copy.name}; written anew")
        elif compare:
            continued(recipe, load(self.config))


def bytes_of(path: Path) -> int:
    """The size of the files in a directory and below it; those that vanish meanwhile do not count."""
    total = 0
    for each in path.rglob("*"):
        with suppress(OSError):
            found = each.lstat()
            total += 0 if S_ISDIR(found.st_mode) else found.st_size
    return total


def bytes_of_runs(folder: Path) -> tuple[int, int]:
    """(how many runs a folder holds, their size in bytes)."""
    runs = [path for path in folder.iterdir() if (path / "config.toml").is_file()]
    return len(runs), sum(map(bytes_of, runs))


def environment(step: int, about: Mapping[str, Any]) -> dict[str, Any]:
    """A start of a run after `step` steps: when, the version, `about`, and what `ampkit doctor` finds here."""
    found = {finding.topic: finding.found.partition(" at /")[0] for finding in examine()}
    return {**start(step, about), "found": found}


def start(step: int, about: Mapping[str, Any]) -> dict[str, Any]:
    """A start of a run after `step` steps, without what is found here."""
    return {"started": _now(), "step": step, "ampkit": version(), **about}


def version() -> str:
    """The version of the installed ampkit."""
    try:
        return metadata.version("ampkit")
    except metadata.PackageNotFoundError:  # imported from where it is not installed
        return "unknown"


def _with_checksum(text: bytes) -> bytes:
    return b"# sha256 of the lines below: " + hashlib.sha256(text).hexdigest().encode() + b"\n" + text


@contextmanager
def _os_errors_as_file_error(path: Path) -> Iterator[None]:
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        got = f"{str(path)!r}: {error.strerror or error}"
        raise FileError(_WHERE, "one that can be written", got, "give another --run-dir") from error


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")

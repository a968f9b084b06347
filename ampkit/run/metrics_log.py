"""The rows of a run: `metrics.jsonl`, one JSON object per line, appended to and never silently shortened."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..base.errors import FileError
from ..serialization import write
from .loop import Row


class ResumePoint(NamedTuple):
    """How far a run had come: steps made, and the step after which it was evaluated last."""

    done: int
    evaluated: int


class MetricsLog:
    """The metrics file of a run that is being written; a context manager.

    after: where a run that goes on is, None for one that starts. mark: what `sync` gave when the run was there. Rows
    beyond that place are removed, as is a last line that was cut off: they are written again. Anything else that is
    removed stays in a copy beside the file. notices: a line for each thing that is wrong with the file.
    Raises FileError for a file that is no regular one or cannot be written.
    """

    def __init__(self, path: Path, after: ResumePoint | None = None, mark: Mapping[str, Any] | None = None):
        self.path, self.notices = path, list[str]()
        data = read(path)
        kept, fault = (b"", None) if after is None else examine(data, after, mark)
        if after is None and data:
            copy = set_aside(path, data, "old")
            self.notices.append(f"{path}: the rows of an earlier start are kept in {copy.name}")
        if fault is not None:
            copied = f"; the file as it was is {set_aside(path, data, 'damaged').name}" if data else ""
            self.notices.append(f"{path}: {fault}{copied}")
        if data is not None and not data.startswith(kept):
            write("metrics", path, kept)
        self._digest, self.size = hashlib.sha256(kept), len(kept)
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._handle, self.size)

    def write(self, row: Row) -> None:
        """Add a row; a score that its task does not have is left out.

        Raises FileError if it cannot be written; the file then ends with the row before.
        """
        values = {name: _plain(value) for name, value in asdict(row).items() if value is not None}
        line = (json.dumps(values) + "\n").encode()
        try:
            self._append(line)
        except OSError as error:
            os.ftruncate(self._handle, self.size)
            raise self._failed(error) from error
        self._digest.update(line)
        self.size += len(line)

    def _append(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._handle, line) :]

    def sync(self) -> dict[str, Any]:
        """Bring all rows to the disk; returns how many bytes they are, and their SHA-256."""
        try:
            os.fsync(self._handle)
        except OSError as error:
            raise self._failed(error) from error
        return {"bytes": self.size, "sha256": self._digest.hexdigest()}

    def _failed(self, error: OSError) -> FileError:
        return FileError("metrics", "a file that can be written", f"{self.path}: {error.strerror or error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self.sync()
        finally:
            os.close(self._handle)


def read(path: Path) -> bytes | None:
    """The content of a metrics file, None if there is none. Raises FileError for anything but a regular file."""
    try:
        if not stat.S_ISREG(mode := path.lstat().st_mode):
            got = "a symbolic link" if stat.S_ISLNK(mode) else "another kind of file"
            raise FileError("metrics", "a regular file", f"{got}: {path}", "move it away")
        return path.read_bytes()
    except FileNotFoundError:
        return None


def examine(data: bytes | None, place: ResumePoint, mark: Mapping[str, Any] | None) -> tuple[bytes, str | None]:
    """The rows of a metrics file up to a place, and what is wrong with the file; None if nothing is."""
    if data is None:
        return b"", "missing, so the rows before this step are lost"
    *lines, _cut_off = data.split(b"\n")
    steps = [_order(line, place) for line in lines]
    kept = b"".join(line + b"\n" for line, before in zip(lines, steps, strict=True) if before)
    if mark is not None and hashlib.sha256(data[: mark["bytes"]]).hexdigest() == mark["sha256"]:
        kept, whole = data[: mark["bytes"]], True
    else:
        whole = mark is None and kept != b"" and data.startswith(kept)  # the first step always has a row
    if whole and None not in steps:
        return kept, None
    rows, bad = kept.count(b"\n"), steps.count(None)
    found = f"{bad} of {len(lines)} lines cannot be read" if bad else "rows are missing, changed or out of order"
    return kept, f"damaged: {found}; {rows} rows are kept"


def _order(line: bytes, place: ResumePoint) -> bool | None:
    """Whether a row is of a step up to a place; None for a line that is no row."""
    try:
        row = json.loads(line)
        step = row["step"]
        return step <= (place.evaluated if "val_loss" in row else place.done) if type(step) is int else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def set_aside(path: Path, data: bytes, word: str) -> Path:
    """Write `data` beside `path` as `<name>.<word>-<number>`, the first number that is free; returns that path."""
    names = (path.with_name(f"{path.name}.{word}-{number}") for number in count(1))
    copy = next(name for name in names if not os.path.lexists(name))
    write("copy", copy, data)
    return copy


def _plain(value: Any) -> Any:
    # JSON has no infinity and no NaN: the norm of a skipped step is null.
    return None if isinstance(value, float) and not math.isfinite(value) else value

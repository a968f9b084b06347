"""The metrics log of a run: `metrics.jsonl`, one JSON object per row, append-only; rows are never dropped silently."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..base.atomic_file import write
from ..base.errors import FileError
from .trainer.rows import Row


class ResumePoint(NamedTuple):
    """How far a run had come at a checkpoint: the steps done, and the step of the last evaluation."""

    done: int
    evaluated: int


class MetricsLog:
    """The metrics file of a run, open for appending; a context manager.

    after: where a resumed run continues, None for a new run. mark: what `sync` returned at that point. Rows beyond it
    are removed, as is a truncated last line: they are written again. Whatever else is removed is kept in a copy beside
    the file. notices: a line for each defect of the file.
    Raises FileError for a file that is not regular or cannot be written.
    """

    def __init__(self, path: Path, after: ResumePoint | None = None, mark: Mapping[str, Any] | None = None):
        self.path, self.notices = path, list[str]()
        data = read(path)
        valid, fault = (b"", None) if after is None else examine(data, after, mark)
        if after is None and data:
            copy = back_up(path, data, "old")
            self.notices.append(f"{path}: the rows of an earlier start are kept in {copy.name}")
        if fault is not None:
            copied = f"; the file as it was is {back_up(path, data, 'damaged').name}" if data else ""
            self.notices.append(f"{path}: {fault}{copied}")
        if data is not None and not data.startswith(valid):
            write("metrics", path, valid)
        self._digest, self.size = hashlib.sha256(valid), len(valid)
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._handle, self.size)

    def write(self, row: Row | Mapping[str, Any]) -> None:
        """Append a row, or the numbers of one by name, as `as_json` gives it.

        Raises FileError if it cannot be written; the file then ends with the previous row.
        """
        self.append(as_json(row))

    def append(self, values: Mapping[str, Any]) -> None:
        """Append `values`, of JSON, with the key "step". Raises FileError as `write` does."""
        left = line = (json.dumps(values) + "\n").encode()
        try:
            while left:
                left = left[os.write(self._handle, left) :]
        except OSError as error:
            os.ftruncate(self._handle, self.size)
            raise self._failed(error) from error
        self._digest.update(line)
        self.size += len(line)

    def sync(self) -> dict[str, Any]:
        """Flush all rows to the disk; returns their size in bytes and their SHA-256."""
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
    except FileError:  # an OSError, too
        raise
    except OSError as error:
        raise FileError("metrics", "a file that can be read", f"{path}: {error.strerror}") from None


def examine(data: bytes | None, point: ResumePoint, mark: Mapping[str, Any] | None) -> tuple[bytes, str | None]:
    """(the valid rows up to a resume point, the defect of the file or None)."""
    if data is None:
        return b"", "missing, so the rows before this step are lost"
    *lines, _truncated = data.split(b"\n")
    before = [_is_before(line, point) for line in lines]
    kept = b"".join(line + b"\n" for line, is_before in zip(lines, before, strict=True) if is_before)
    if mark is not None and hashlib.sha256(data[: mark["bytes"]]).hexdigest() == mark["sha256"]:
        kept, whole = data[: mark["bytes"]], True
    else:
        whole = mark is None and kept != b"" and data.startswith(kept)  # the first step always has a row
    if whole and None not in before:
        return kept, None
    rows, bad = kept.count(b"\n"), before.count(None)
    found = f"{bad} of {len(lines)} lines cannot be read" if bad else "rows are missing, changed or out of order"
    return kept, f"damaged: {found}; {rows} rows are kept"


def _is_before(line: bytes, point: ResumePoint) -> bool | None:
    """Whether a row is of a step up to a resume point; None for a line that is not a row."""
    try:
        row = json.loads(line)
        step = row["step"]
        return step <= (point.evaluated if "val_loss" in row else point.done) if type(step) is int else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def back_up(path: Path, data: bytes, reason: str) -> Path:
    """Write `data` beside `path` as `<name>.<reason>-<number>` with the first free number; returns that path."""
    names = (path.with_name(f"{path.name}.{reason}-{number}") for number in count(1))
    copy = next(name for name in names if not os.path.lexists(name))
    write("copy", copy, data)
    return copy


def as_json(row: Row | Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row by name, as metrics.jsonl has them: without scores that do not apply."""
    named = row if isinstance(row, Mapping) else row.values()
    # JSON has no infinity and no NaN: the norm of a skipped step is null.
    return {name: value if math.isfinite(value) else None for name, value in named.items()}

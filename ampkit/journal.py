"""The run directory: `config.toml`, the complete recipe, and `metrics.jsonl`, one JSON object per row."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from datetime import datetime
from itertools import count, takewhile
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from .config import Recipe, continued, dump, load
from .core.errors import FileError
from .serialize import write
from .train import Row


def default_directory(recipe: str | Path, dtype: str, now: datetime, root: str | Path = "runs") -> Path:
    """`runs/<recipe>-<dtype>-<timestamp>`, with a number behind where that is taken."""
    stem = f"{Path(recipe).stem}-{dtype}-{now:%Y%m%d-%H%M%S}"
    names = (Path(root) / (stem if i == 1 else f"{stem}-{i}") for i in count(1))
    return next(name for name in names if not name.exists())


class Place(NamedTuple):
    """How far a run had come: steps made, and the step after which it was evaluated last."""

    done: int
    evaluated: int


class Journal:
    """A run directory that is being written; a context manager.

    after: where a run that goes on in its directory is: what stands there of later steps is taken back, and a row that
    was cut off. A row has left Python once `write` returns, is on the disk after `sync`, and all are at the end.
    Raises FileError for a directory that cannot be written, or that holds something; with `after`, something else than
    a run. ConfigError, with `after`, if the run was another recipe's.
    """

    def __init__(self, directory: str | Path, recipe: Recipe, after: Place | None = None):
        self.directory = Path(directory)
        self.metrics, config = self.directory / "metrics.jsonl", self.directory / "config.toml"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # A process killed while it wrote config.toml leaves what it wrote beside it.
            if after is not None and config.exists():
                continued(recipe, load(config))
            elif any(not path.name.startswith(".config.toml.") for path in self.directory.iterdir()):
                cure = "give another --run-dir, or remove it"
                needs = "a new or empty one" if after is None else "one that holds a run, or a new one"
                raise FileError("run directory", needs, f"{str(directory)!r}, which holds files", cure)
            write("run directory", config, dump(recipe).encode())
            self._file: IO[str] = self.metrics.open("x" if after is None else "a", encoding="utf-8")
            self._file.truncate(0 if after is None else _length(self.metrics, after))
        except FileError:
            raise
        except OSError as error:
            got = f"{str(directory)!r}: {error.strerror}"
            raise FileError("run directory", "one that can be written", got, "give another --run-dir") from error

    def write(self, row: Row) -> None:
        """Add a row; a score that its task does not have is left out."""
        values = {name: _plain(value) for name, value in asdict(row).items() if value is not None}
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Bring all rows to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.sync()
        self._file.close()


def _length(metrics: Path, after: Place) -> int:
    """The bytes of the rows up to a place."""
    lines = metrics.read_bytes().splitlines(keepends=True)
    return sum(map(len, takewhile(lambda line: _before(line, after), lines)))


def _before(line: bytes, place: Place) -> bool:
    try:
        row = json.loads(line)
        return line.endswith(b"\n") and row["step"] <= (place.evaluated if "val_loss" in row else place.done)
    except (ValueError, TypeError, KeyError):
        return False


def _plain(value: Any) -> Any:
    # JSON has no infinity and no NaN: the norm of a skipped step is null.
    return None if isinstance(value, float) and not math.isfinite(value) else value

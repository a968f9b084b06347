"""The run directory: `config.toml`, the complete recipe, and `metrics.jsonl`, one JSON object per row."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import IO, Any, Self

from .config import Recipe, dump
from .core.errors import FileError
from .train import Row


def default_directory(recipe: str | Path, dtype: str, now: datetime, root: str | Path = "runs") -> Path:
    """`runs/<recipe>-<dtype>-<timestamp>`, with a number behind where that is taken."""
    stem = f"{Path(recipe).stem}-{dtype}-{now:%Y%m%d-%H%M%S}"
    names = (Path(root) / (stem if i == 1 else f"{stem}-{i}") for i in count(1))
    return next(name for name in names if not name.exists())


class Journal:
    """A run directory that is being written; a context manager.

    A row has left Python once `write` returns, and all are on the disk at the end.
    Raises FileError for a directory that cannot be written, or that holds something.
    """

    def __init__(self, directory: str | Path, recipe: Recipe):
        self.directory = Path(directory)
        self.metrics = self.directory / "metrics.jsonl"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if any(self.directory.iterdir()):
                cure = "give another --run-dir, or remove it"
                raise FileError("run directory", "a new or empty one", f"{str(directory)!r}, which holds files", cure)
            (self.directory / "config.toml").write_text(dump(recipe), "utf-8")
            self._file: IO[str] = self.metrics.open("x", encoding="utf-8")
        except FileError:
            raise
        except OSError as error:
            got = f"{str(directory)!r}: {error.strerror}"
            raise FileError("run directory", "one that can be written", got, "give another --run-dir") from error

    def write(self, row: Row) -> None:
        """Add a row."""
        self._file.write(json.dumps({name: _plain(value) for name, value in asdict(row).items()}) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def _plain(value: Any) -> Any:
    # JSON has no infinity and no NaN: the norm of a skipped step is null.
    return None if isinstance(value, float) and not math.isfinite(value) else value

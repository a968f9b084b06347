"""`metrics.csv` in the run directory: a line per row, for spreadsheets."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..trainer.rows import COLUMNS
from . import Metrics, Start, row_of


class Writer:
    """Rows in columns of all metrics; a resumed run first has the rows of metrics.jsonl, which were cut at its start.

    A killed process may have left fewer lines here. Without metrics.jsonl it drops the lines that it writes again.
    Where a row brings a metric of its own, the file is written again with a column for it.
    """

    def __init__(self, start: Start):
        self._path, self._columns = start.directory / "metrics.csv", COLUMNS
        self._begin(self._lines_before(start) if start.done else [])

    def _lines_before(self, start: Start) -> list[dict[str, Any]]:
        logged = _rows_of(start.directory / "metrics.jsonl")
        if logged or not self._path.exists():
            return _lines(logged)
        return _up_to(start.done, self._path.read_text())

    def _begin(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._columns = tuple(dict.fromkeys((*self._columns, *(name for line in lines for name in line))))
        self._file = self._path.open("w", newline="")
        self._table = csv.DictWriter(self._file, self._columns)
        self._table.writeheader()
        self._table.writerows(lines)
        self._file.flush()

    def write(self, rows: Sequence[Metrics]) -> None:
        """Write rows."""
        lines = _lines(rows)
        if {name for line in lines for name in line} <= set(self._columns):
            self._table.writerows(lines)
            self._file.flush()
        else:
            self._file.close()
            with self._path.open(newline="") as file:
                before = list(csv.DictReader(file))
            self._begin([*before, *lines])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _rows_of(log: Path) -> list[Metrics]:
    """The rows of a metrics log; none without a file."""
    return [row_of(json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []


def _lines(rows: Sequence[Metrics]) -> list[dict[str, Any]]:
    return [{"step": row.step, **row.values} for row in rows]


def _up_to(done: int, text: str) -> list[dict[str, Any]]:
    rows = (row for row in csv.DictReader(text.splitlines()) if (row.get("step") or "").isdigit())
    return [{name: row[name] or "" for name in row if name} for row in rows if int(row["step"]) <= done]

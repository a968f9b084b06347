"""`metrics.csv` in the run directory: a line per row, for spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from ..trainer.rows import COLUMNS
from . import Metrics, Start


class Writer:
    """Rows in columns of all metrics; a resumed run first drops the lines that it writes again.

    Where a row brings a metric of its own, the file is written again with a column for it.
    """

    def __init__(self, start: Start):
        self._path, self._columns = start.directory / "metrics.csv", COLUMNS
        kept = _lines_before(self._path.read_text(), start.done) if start.done and self._path.exists() else []
        self._begin(kept)

    def _begin(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._columns = tuple(dict.fromkeys((*self._columns, *(name for line in lines for name in line))))
        self._file = self._path.open("w", newline="")
        self._table = csv.DictWriter(self._file, self._columns)
        self._table.writeheader()
        self._table.writerows(lines)
        self._file.flush()

    def write(self, rows: Sequence[Metrics]) -> None:
        """Write rows."""
        lines: list[dict[str, Any]] = [{"step": row.step, **row.values} for row in rows]
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


def _lines_before(text: str, done: int) -> list[dict[str, str]]:
    rows = (row for row in csv.DictReader(text.splitlines()) if (row.get("step") or "").isdigit())
    return [{name: row[name] or "" for name in row if name} for row in rows if int(row["step"]) <= done]

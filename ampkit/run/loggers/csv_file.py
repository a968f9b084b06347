"""`metrics.csv` in the run directory: a line per row, for spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from ..loop import EvalRow, StepRow
from . import Metrics, Start

COLUMNS = tuple(dict.fromkeys((*StepRow.__dataclass_fields__, *EvalRow.__dataclass_fields__)))


class Writer:
    """Rows in columns of all metrics; a resumed run first drops the lines that it writes again."""

    def __init__(self, start: Start):
        path = start.directory / "metrics.csv"
        kept = _lines_before(path.read_text(), start.done) if start.done and path.exists() else []
        self._file = path.open("w", newline="")
        self._table = csv.DictWriter(self._file, COLUMNS)
        self._table.writeheader()
        self._table.writerows(kept)
        self._file.flush()

    def write(self, rows: Sequence[Metrics]) -> None:
        """Write rows."""
        self._table.writerows({"step": row.step, **row.values} for row in rows)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _lines_before(text: str, done: int) -> list[dict[str, str]]:
    rows = (row for row in csv.DictReader(text.splitlines()) if (row.get("step") or "").isdigit())
    return [{name: row.get(name) or "" for name in COLUMNS} for row in rows if int(row["step"]) <= done]

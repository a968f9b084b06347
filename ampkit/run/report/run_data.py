"""What a report shows of a run directory, read from its files; a damaged file gives a part, and a note that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.errors import FileError
from ...config.read import parse_toml
from ...debug import Ledger
from ..measure import MEASURED
from ..metrics_log import read
from ..search.lab import LAB
from .precision_data import precision_data
from .sound import Check, is_environment, is_lab, is_logged, is_measured, is_ranges_row, parsed, plain

DIGITS = 7  # significant, of the numbers in a report: as many as float32 has


@dataclass
class RunData:
    """A run as columns of numbers.

    name: of its directory. config: the text of its config.toml. settings: the same as a table. steps: a column for each
    metric of the logged steps. evaluations: likewise, of the evaluations. precision: what 16 bits lose of each layer,
    see `precision_data`; None if the run did not look. environment: of each start: when, after which step, the version,
    the number of ranks, and what was found there; of a Trainer its dtype. measured: the plan and ledger of its steps,
    see `measure`, None if there are none. lab: what its layers lose in formats below 16 bits, see `LabRecipe.as_json`,
    None if that is not known. notes: a line for each file that is missing or damaged.
    """

    name: str
    config: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, list[Any]] = field(default_factory=dict)
    evaluations: dict[str, list[Any]] = field(default_factory=dict)
    precision: dict[str, Any] | None = None
    environment: list[Any] = field(default_factory=list)
    measured: dict[str, Any] | None = None
    lab: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Set the columns to those of rows of metrics, by name."""
        self.steps = _columns(row for row in rows if "val_loss" not in row)
        self.evaluations = _columns(row for row in rows if "val_loss" in row)


def read_run(path: Path) -> RunData:
    """The run in the directory `path`. Raises FileError if it holds no run."""
    if not path.is_dir():
        got = f"{str(path)!r}, which is a file" if path.exists() else f"{str(path)!r}, which does not exist"
        raise FileError("report", "the directory of a run", got, "`ampkit train` names it at its end")
    run = RunData(path.resolve().name)
    found = [_read_config(path / "config.toml", run), _read_metrics(path / "metrics.jsonl", run)]
    if not any(found):
        cure = "give the directory that holds config.toml and metrics.jsonl"
        raise FileError("report", "the directory of a run", f"{str(path)!r}, which holds none", cure)
    if data := read(path / "ranges.jsonl"):
        rows = sorted(_rows(data, "ranges.jsonl", run, is_ranges_row), key=lambda row: int(row["step"]))
        run.precision = precision_data(rows) if rows else None
    if data := read(path / "environment.jsonl"):
        run.environment = _rows(data, "environment.jsonl", run, is_environment)
    _read_measured(path / MEASURED, run)
    _read_lab(path / LAB, run)
    return run


def _read_config(path: Path, run: RunData) -> bool:
    data = read(path)
    if data is None:
        run.notes.append("config.toml is missing, as of a Trainer, which has no recipe: its steps are not run again")
        return False
    try:
        run.config = data.decode()
        run.settings = plain(parse_toml(run.config))
    except (ValueError, RecursionError):
        run.notes.append("config.toml cannot be read: the recipe is not known")
    return True


def _read_metrics(path: Path, run: RunData) -> bool:
    data = read(path)
    if data is None:
        run.notes.append("metrics.jsonl is missing: no step was logged")
        return False
    run.add(_rows(data, "metrics.jsonl", run))
    return True


def _read_measured(path: Path, run: RunData) -> None:
    if (data := read(path)) is None:
        return
    try:
        found = parsed(data)
        if not is_measured(found):
            raise ValueError
        Ledger(**found["ledger"])
        run.measured = found
    except (ValueError, TypeError, RecursionError):
        run.notes.append(f"{MEASURED} cannot be read: plan and ledger are left out")


def _read_lab(path: Path, run: RunData) -> None:
    if (data := read(path)) is None:
        return
    try:
        found = parsed(data)
        if not is_lab(found):
            raise ValueError
        run.lab = found
    except (ValueError, RecursionError):
        run.notes.append(f"{LAB} cannot be read: the formats below 16 bits are left out")


def _rows(data: bytes, name: str, run: RunData, check: Check = is_logged) -> list[Mapping[str, Any]]:
    """The rows of a file; a note counts the lines that are none, of which a last line without an end is one."""
    *lines, rest = data.split(b"\n")
    rows = [row for line in lines if (row := _row(line, check)) is not None]
    if unread := len(lines) - len(rows) + bool(rest):
        run.notes.append(f"{name}: {unread} of {unread + len(rows)} lines cannot be read and are left out")
    return rows


def _row(line: bytes, check: Check) -> Mapping[str, Any] | None:
    try:
        row = parsed(line)
        return row if check(row) else None
    except (ValueError, RecursionError):
        return None


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A column for each key of the rows, in the order of their steps, None where a row lacks it; the last row counts
    where several have the same step.
    """
    by_step = {row["step"]: row for row in rows}
    ordered = [by_step[step] for step in sorted(by_step)]
    names = dict.fromkeys(name for row in ordered for name in row)
    return {name: [_number(row.get(name)) for row in ordered] for name in names}


def _number(value: Any) -> Any:
    if type(value) is float:
        return float(f"{value:.{DIGITS}g}")
    return value if type(value) is int else None

"""A report: one HTML file that shows one run, or compares several, in a browser and without a network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from string import Template

from ...base.atomic_file import write
from .findings import findings
from .run_data import RunData, read_run

__all__ = ["RunData", "name_apart", "page", "read_run", "report"]


def report(runs: Iterable[str | Path], out: str | Path) -> list[RunData]:
    """Write a report of the run directories `runs` to the HTML file `out`; returns what it shows of each.

    Raises FileError for a directory that holds no run, and for a file that cannot be written.
    """
    found = [read_run(Path(path)) for path in runs]
    name_apart(found)
    write("report", Path(out), page(found).encode(errors="replace"))
    return found


def page(runs: Sequence[RunData]) -> str:
    """The HTML of a report: its template with styles, scripts and the numbers of `runs` in it."""
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    shown = {"made": made, "findings": findings(runs), "runs": [vars(run) for run in runs]}
    numbers = json.dumps(shown, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {name: _text(file) for name, file in _PARTS.items()}
    return Template(_text("page.html")).substitute(parts, title=_title(runs), numbers=numbers)


_PARTS = {
    "library_styles": "uplot/uPlot.min.css",
    "styles": "page.css",
    "library": "uplot/uPlot.iife.min.js",
    "charts": "charts.js",
    "precision": "precision.js",
    "formats": "formats.js",
    "steps": "steps.js",
    "script": "page.js",
}


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("page", name).read_text("utf-8")


def _title(runs: Sequence[RunData]) -> str:
    return ", ".join(run.name for run in runs).replace("&", "&amp;").replace("<", "&lt;")


def name_apart(runs: Sequence[RunData]) -> None:
    """Number runs whose directories have the same name."""
    names = [run.name for run in runs]
    for position, run in enumerate(runs):
        if names.count(run.name) > 1:
            run.name += f" ({names[: position + 1].count(run.name)})"

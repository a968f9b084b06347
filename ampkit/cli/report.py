"""`ampkit report`: write a page that shows runs, and open it."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from rich.console import Console

from ..base.errors import AmpkitError
from ..run.measure import measure_run
from ..run.report import report
from .display import print_line
from .progress import status


def _measure(directory: Path, console: Console) -> None:
    if not (directory / "config.toml").exists():  # which the report says
        return
    try:
        with status(console, f"running steps of {directory.name}"):
            measure_run(directory)
    except (AmpkitError, OSError, MemoryError) as error:
        print_line(console, f"{directory.name}: its steps cannot be measured here: {error}")


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the report of the command line; returns the exit status."""
    alone = Path(options.runs[0]) if len(options.runs) == 1 else Path()
    out = Path(options.out) if options.out else alone / "report.html"
    for run_directory in options.runs if options.measure else ():
        _measure(Path(run_directory), console)
    for found in report(options.runs, out):
        for note in found.notes:
            print_line(console, f"{found.name}: {note}")
    print_line(console, f"report: {out}")
    if options.open and not webbrowser.open(out.resolve().as_uri()):
        print_line(console, "no browser was found: open the file by hand")
    return 0

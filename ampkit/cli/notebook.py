"""What a notebook shows: one bar for a run that trains, and a report in its cell."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from ..base.atomic_file import write
from ..run.loop import EvalRow, Row, StepRow
from ..run.report import name_apart, page, read_run
from ..run.trainer.loop import TrainingLoop
from . import display
from .progress import ProgressMeter, scaling, scores_in_words, sparkline

_BETWEEN = 0.1  # seconds between updates of a bar


def progress(run: TrainingLoop) -> Iterator[Row]:
    """Train, as iterating over `run` does, with a progress bar: in a notebook one display, else on the terminal.

    run: of a recipe, or a Trainer. Yields the rows of metrics.
    """
    if in_notebook():
        yield from _in_a_cell(run)
        return
    label = run.dtype, run.steps, run.per_step, run.unit
    with ProgressMeter(display.console(sys.stdout), *label, done=lambda: run.done) as meter:
        for row in run:
            meter.show(row)
            yield row


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def _in_a_cell(run: TrainingLoop) -> Iterator[Row]:
    ipython: Any = import_module("IPython.display")
    bar, shown = Bar(run), 0.0
    handle = ipython.display(ipython.HTML(bar.html()), display_id=True)
    for row in run:
        bar.show(row)
        if time.monotonic() - shown > _BETWEEN:
            handle.update(ipython.HTML(bar.html()))
            shown = time.monotonic()
        yield row
    handle.update(ipython.HTML(bar.html()))


class Bar:
    """A run's progress as HTML: a bar, the last metrics with the course of the loss, and a line per evaluation."""

    def __init__(self, run: TrainingLoop):
        self._run, self._losses = run, list[float]()
        self._last: StepRow | None = None
        self._evaluations: list[str] = []

    def show(self, row: Row) -> None:
        """Take in a row of metrics."""
        if isinstance(row, EvalRow):
            self._evaluations.append(f"step {row.step}  {scores_in_words(row)}")
        else:
            self._last = row
            self._losses = [*self._losses, row.loss][-24:]

    def html(self) -> str:
        """What is shown now."""
        run, words = self._run, self._words()
        known = "" if run.steps is None else f' value="{run.done}" max="{run.steps}"'
        bar = f'<progress{known} style="vertical-align:middle"></progress>'
        done = f"{run.done}" if run.steps is None else f"{run.done}/{run.steps}"
        lines = [f"{escape(run.dtype)} {bar} {done} {escape(words)}"]
        return f'<div style="font-family:monospace">{"<br>".join([*lines, *map(escape, self._evaluations)])}</div>'

    def _words(self) -> str:
        row = self._last
        if row is None:
            return ""
        rate = f"{row.step * self._run.per_step / row.seconds:,.0f} {self._run.unit}/s" if row.seconds else ""
        return f"{sparkline(self._losses)} loss {row.loss:.4f}  {rate}  {scaling(row)}".rstrip()


class Report:
    """A page of charts that shows runs; in a notebook it is shown in the cell. See `report`."""

    def __init__(self, runs: Iterable[str | Path]):
        self.runs = [read_run(Path(path)) for path in runs]
        name_apart(self.runs)

    @property
    def html(self) -> str:
        """The page."""
        return page(self.runs)

    def save(self, f: str | Path) -> None:
        """Write the page to a file. Raises FileError where that fails."""
        write("report", Path(f), self.html.encode(errors="replace"))

    def __repr__(self) -> str:
        return f"Report({', '.join(run.name for run in self.runs)}): .save('report.html') writes it"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" {_FRAME}></iframe>'


_FRAME = 'style="width:100%;height:700px;border:0" title="report"'


def report(*runs: Any) -> Report:
    """A page of charts that shows the run directories `runs` and compares them. Raises FileError for others.

    In a notebook it is shown in the cell; `.save("report.html")` writes it.
    """
    return Report(runs)

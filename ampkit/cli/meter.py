"""How far a search is, on a terminal or in lines, and the numbers that its commands take."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ..debug.policy_search.tuning import Progress
from .display import print_line

_LONG = 5.0  # seconds: a stage that takes longer says so when it starts


class Meter:
    """The progress of stages: a bar on a terminal, elsewhere a line for each, and one ahead of those that are long."""

    def __init__(self, console: Console):
        self._console, self._stage, self._start, self._last = console, "", 0.0, 0
        columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._bar.add_task("")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Show how far a stage is."""
        now = time.perf_counter()
        if progress.stage != self._stage or progress.done < self._last:  # a stage may come again
            self._stage, self._start, self._first = progress.stage, now, progress.done
            self._bar.reset(self._task, description=progress.stage)
        self._last = progress.done
        self._bar.update(self._task, completed=progress.done, total=progress.total)
        done, left = progress.done - self._first, progress.total - progress.done
        if self._console.is_terminal or not done:
            return
        if done == 1 and (now - self._start) * left > _LONG:
            line = f"{progress.stage}: {progress.total} passes, about {(now - self._start) * left:.0f} s"
            print_line(self._console, line)
        elif not left and progress.total > 1:
            print_line(self._console, f"{progress.stage}: {progress.total} passes in {now - self._start:.1f} s")

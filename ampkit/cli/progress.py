"""What is shown while a run trains: a live view on a terminal, a line per row elsewhere."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..base import progress
from ..base.byte_sizes import bytes_in_words
from ..run.loop import EvalRow, Row, StepRow
from .display import scores

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=^"  # where the terminal's encoding has no block elements
_WIDTH = 24  # of the sparkline, in rows of the metrics


class _Live(Progress):
    """A progress bar that asks for the number of steps done each time it is drawn, with lines below it."""

    done: Callable[[], int] | None = None
    lines: Callable[[], Iterable[str]] = staticmethod(lambda: ())

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.done is not None and self.task_ids:
            self.update(self.task_ids[0], completed=self.done())
        yield from super().get_renderables()
        for line in self.lines():
            yield Text(line)


class ProgressMeter:
    """Progress of a run; a context manager around it.

    On a terminal, a bar that moves with every step, below it the loss with a sparkline, the rate, the loss scale,
    gradient norm and memory of the last row, and above it a line for each evaluation, which stays. Elsewhere, a line
    per row. label: what is trained. steps: in all, None if that is unknown. unit: what the rate counts, samples or
    tokens, `per_step` of them in a step. every:
    without a terminal, leave out steps that it does not divide, except for the first and the last. done: tells the
    steps done so far; by default they are those of the rows.
    """

    def __init__(
        self,
        console: Console,
        label: str,
        steps: int | None,
        per_step: int,
        unit: str,
        every: int = 1,
        done: Callable[[], int] | None = None,
    ):
        self.console, self.label, self.steps, self.per_step, self.unit = console, label, steps, per_step, unit
        self.every, self._last = every, (0, 0.0)
        self._losses: deque[float] = deque(maxlen=_WIDTH)
        self._row: StepRow | None = None
        self._rate, self._notice = math.nan, ""
        self._bar = _Live(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._bar.done, self._bar.lines = done, self._lines
        self._task = self._bar.add_task(label, total=steps)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, row: Row) -> None:
        """Show a row."""
        if isinstance(row, EvalRow):
            self._print(row.step, scores_in_words(row))
            return
        steps, seconds = row.step - self._last[0], row.seconds - self._last[1]
        self._rate = steps * self.per_step / seconds if seconds > 0 else math.nan
        self._row, self._last = row, (row.step, row.seconds)
        self._losses.append(row.loss)
        if self.console.is_terminal:
            if self._bar.done is None:
                self._bar.update(self._task, completed=row.step)
        elif row.step % self.every == 0 or row.step in (1, self.steps):
            self._print(row.step, f"{self._loss(row)}  {scaling(row)}".rstrip())

    def notice(self, line: str) -> None:
        """Show a line below the bar at once, such as the answer to Ctrl-C; nothing without a terminal."""
        self._notice = line
        if self.console.is_terminal:
            self._bar.refresh()

    def renderables(self) -> list[RenderableType]:
        """What a terminal shows of it now."""
        return list(self._bar.get_renderables())

    def _print(self, step: int, line: str) -> None:
        of = "" if self.steps is None else f"/{self.steps}"
        self.console.print(escape(f"{self.label}  step {step}{of}  {line}"), soft_wrap=True)

    def _lines(self) -> Iterable[str]:
        if self._row is not None:
            loss, memory = self._loss(self._row), self._row.memory
            losses = [*self._losses][-max(1, self.console.width - len(loss) - 1) :]
            yield f"{sparkline(losses, self.console.encoding)} {loss}".lstrip()
            used = "" if memory is None else f"memory {bytes_in_words(memory)}"
            norm = f"grad norm {self._row.grad_norm:.3g}" if math.isfinite(self._row.grad_norm) else ""
            yield from _lines_of(filter(None, (scaling(self._row), norm, used)), self.console.width)
        if self._notice:
            yield self._notice

    def _loss(self, row: StepRow) -> str:
        return f"loss {row.loss:.4f}  {self._rate:,.0f} {self.unit}/s"


def _lines_of(parts: Iterable[str], width: int) -> list[str]:
    """The parts side by side, in as many lines of at most `width` columns as they need."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def scaling(row: StepRow) -> str:
    """The loss scale and the skipped steps in words, "" where there are none."""
    return f"scale {row.scale:g}  skipped {row.skipped}" if row.scale != 1 or row.skipped else ""


def scores_in_words(row: EvalRow) -> str:
    """The scores of an evaluation, on one line."""
    found = (f"  {name} {value}" for name, value in scores(row))
    return f"val loss {row.val_loss:.4f}{''.join(found)}"


def sparkline(values: Iterable[float], encoding: str = "utf-8") -> str:
    """The values as characters of increasing height, a space for one that is not finite."""
    known = [value for value in values if math.isfinite(value)]
    blocks = _BLOCKS if _can_encode(_BLOCKS, encoding) else _ASCII_BLOCKS
    low, high = min(known, default=0.0), max(known, default=0.0)

    def height(value: float) -> int:
        return int((value - low) / (high - low) * (len(blocks) - 1) + 0.5) if high > low else 0

    return "".join(blocks[height(value)] if math.isfinite(value) else " " for value in values)


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


@contextmanager
def status(console: Console, what: str) -> Iterator[None]:
    """Within the block, a terminal shows `what`, and how far long work has come; elsewhere nothing is shown."""
    if not console.is_terminal:
        yield
        return
    with console.status(escape(what)) as shown:

        def update(part: str, done: int, total: int) -> None:
            shown.update(escape(f"{what}: {part}, {done:,} of {total:,}"))

        with progress.listening(update):
            yield

"""What the command line shows: progress while something runs, tables when it is done. rich lives in the doors alone."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import IO, Any, Self, TextIO, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from ..config import Recipe
from ..core.op import Op
from ..core.policy import Cast, Policy
from ..run.bench import Result
from ..run.loop import EvalRow, Row, StepRow
from .doctor import Finding


class Lasting(io.TextIOBase):
    """A text stream that outlives its reader: when `stream` cannot be written any more, what comes is dropped.

    A pipe whose reader has left, a terminal that was closed or a full disk thus end the output and nothing else.
    """

    def __init__(self, stream: TextIO):
        self.stream, self.lost = stream, False

    def write(self, text: str) -> int:
        return self._try(lambda: self.stream.write(text)) or len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return None if self.lost else call()
        except OSError:
            self.lost = True
            with suppress(OSError, ValueError):  # what is still buffered would fail again when Python ends
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.stream.fileno())
                os.close(nowhere)
            return None

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding or "utf-8"


def console(stream: TextIO | None, **options: Any) -> Console:
    """A rich console on a stream; None, a stream that was closed before Python began, shows nothing."""
    file = io.StringIO() if stream is None else Lasting(stream)
    return Console(file=cast(IO[str], file), highlight=False, **options)


_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}


class Meter:
    """A progress bar on a terminal; where there is none, a line per row. A context manager around a run.

    label: what is being trained. unit: what the rate counts, samples or tokens, `per_step` of them in a step. every: on
    paper, leave out steps that this does not divide, but the first and the last.
    """

    def __init__(self, console: Console, label: str, steps: int, per_step: int, unit: str, every: int = 1):
        self.console, self.label, self.steps, self.per_step, self.unit = console, label, steps, per_step, unit
        self.every, self._last = every, (0, 0.0)
        self._loss = self._scale = self._evaluation = ""
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[said]}", table_column=Column(no_wrap=True, ratio=1)),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            expand=True,
        )
        self._task: TaskID = self._bar.add_task(label, total=steps, said="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, row: Row) -> None:
        """Bring a row before the reader's eyes."""
        if isinstance(row, EvalRow):
            scores = (f"  {word} {value:.2%}" for word, value in _fractions(row))
            self._evaluation = f"val loss {row.val_loss:.4f}{''.join(scores)}"
        else:
            self._loss = f"loss {row.loss:.4f}  {self._rate(row):,.0f} {self.unit}/s"
            self._scale = f"scale {row.scale:g}  skipped {row.skipped}  " if row.scale != 1 or row.skipped else ""
        if self.console.is_terminal:
            said = f"{self._loss}\n{self._scale}{self._evaluation}"
            self._bar.update(self._task, completed=row.step, said=said)
        elif isinstance(row, EvalRow) or row.step % self.every == 0 or row.step in (1, self.steps):
            said = self._evaluation if isinstance(row, EvalRow) else f"{self._loss}  {self._scale}"
            self.console.print(f"{self.label}  step {row.step}/{self.steps}  {said.rstrip()}", soft_wrap=True)

    def _rate(self, row: StepRow) -> float:
        """Units per second since the last row shown."""
        steps, seconds = row.step - self._last[0], row.seconds - self._last[1]
        self._last = (row.step, row.seconds)
        return steps * self.per_step / seconds if seconds > 0 else math.nan


def summary(recipe: Recipe, rows: Iterable[Row], per_step: int, unit: str, where: str) -> Table:
    """The end of a run in a few lines."""
    rows = list(rows)
    steps = [row for row in rows if isinstance(row, StepRow)]
    evaluations = [row for row in rows if isinstance(row, EvalRow)]
    title = f"{recipe.model.name} on {recipe.data.name}, {recipe.amp.dtype}"
    table = Table(show_header=False, title=title, title_justify="left")
    if steps:
        last = steps[-1]
        table.add_row("steps", f"{last.step} in {_seconds(last.seconds)}")
        table.add_row("rate", f"{last.step * per_step / last.seconds:,.0f} {unit}/s" if last.seconds else "-")
        table.add_row("training loss", f"{last.loss:.4f}")
    if evaluations:
        table.add_row("validation loss", f"{evaluations[-1].val_loss:.4f} nats")
        for word, value in _fractions(evaluations[-1]):
            table.add_row(word, f"{value:.2%}")
    if steps and recipe.amp.dtype == "float16":
        table.add_row("loss scale", f"{steps[-1].scale:g}, {steps[-1].skipped} steps skipped")
    table.add_row("run directory", where)
    return table


def comparison(title: str, results: list[Result]) -> Table:
    """The precisions side by side; ratios are to the first of them."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(result.dtype, justify="right")
    first = results[0]
    for name, show, ratio in _LINES:
        values = [getattr(result, name) for result in results]
        if name in _FRACTIONS and values == [None] * len(values):
            continue
        table.add_row(_WORDS[name], *(show(value) if value is not None else "-" for value in values))
        if ratio and getattr(first, name) and len(results) > 1:
            shares = (f"{value / getattr(first, name):.2f} x" if value is not None else "-" for value in values)
            table.add_row(f"[dim]  to {first.dtype}[/]", *(f"[dim]{share}[/]" for share in shares))
    return table


def _fractions(row: EvalRow) -> list[tuple[str, float]]:
    """The scores that the task has, under their words."""
    values = ((word, getattr(row, name)) for name, word in _FRACTIONS.items())
    return [(word, value) for word, value in values if value is not None]


def _seconds(value: float) -> str:
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


def _bytes(value: int) -> str:
    return f"{value / 2**20:.0f} MiB"


_FRACTIONS = {"accuracy": "accuracy", "mean_iou": "mean IoU", "char_error_rate": "character error rate"}
_WORDS = {
    "step_seconds": "time per step (median)",
    "seconds": "training time",
    "wall_seconds": "whole time",
    "peak_bytes": "peak memory of the process",
    "run_bytes": "  of it, for the run",
    "device_bytes": "peak memory of arrays on the GPU",
    "val_loss": "validation loss",
    **_FRACTIONS,
    "scale": "loss scale at the end",
    "skipped": "skipped steps",
}
_LINES: list[tuple[str, Any, bool]] = [
    ("step_seconds", _seconds, True),
    ("seconds", _seconds, False),
    ("wall_seconds", _seconds, False),
    ("peak_bytes", _bytes, False),
    ("run_bytes", _bytes, True),
    ("device_bytes", _bytes, True),
    ("val_loss", "{:.4f}".format, True),
    *((name, "{:.2%}".format, False) for name in _FRACTIONS),
    ("scale", "{:g}".format, False),
    ("skipped", str, False),
]


def policy_table(policy: Policy, ops: Iterable[Op], backend: str) -> Table:
    """Every op: its category under `policy`, the dtype it answers in, the kernel that runs it on `backend`."""
    table = Table(title=f"{policy!r} on {backend}", title_justify="left")
    for column in ("op", "file", "category", "dtype out", f"kernel on {backend}"):
        table.add_column(column)
    for op in sorted(ops, key=lambda op: (op.forward.module, op.name)):
        category = policy.category(op.name)
        table.add_row(op.name, op.forward.module, category.value, _answer(category, policy), _kernels(op, backend))
    return table


def _answer(category: Cast, policy: Policy) -> str:
    words = {Cast.LOW: policy.dtype.name, Cast.FP32: "float32", Cast.WIDEST: "its widest input"}
    return (words | {Cast.KEEP: "its first input", Cast.BANNED: "refused"})[category]


def _kernels(op: Op, backend: str) -> str:
    kernels = op.forward.kernels_of(backend)
    names = [kernel.name if kernel.when is None else f"{kernel.name} ({kernel.when.__name__})" for kernel in kernels]
    return ", ".join([*names, *([] if any(kernel.when is None for kernel in kernels) else ["reference"])])


def findings(found: Iterable[Finding]) -> Table:
    """What the doctor saw."""
    table = Table(show_header=False, box=None)
    for finding in found:
        table.add_row(finding.topic, _MARKS[finding.state], escape(finding.found), escape(finding.cure or ""))
    return table

"""The output of the command line: progress while something runs, tables when it is done."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..base.byte_sizes import bytes_in_words
from ..base.errors import AmpkitError, FileError, NonFiniteError
from ..config import Recipe
from ..config.keys import Key
from ..core.op import Op
from ..core.policy import Cast, Policy
from ..distributed.transport import DistError
from ..run.bench import Result
from ..run.doctor import Finding
from ..run.loop import EvalRow, Row, StepRow
from ..run.metrics import Scores
from ..run.report.speed import is_sure, speed_of


class TolerantStream(io.TextIOBase):
    """A text stream that drops its output once `stream` cannot be written.

    So a pipe whose reader has exited, a closed terminal or a full disk ends the output and not the training. Characters
    that its encoding lacks are written as escapes: a path may have any.
    """

    def __init__(self, stream: TextIO):
        self.stream, self.broken = stream, False

    def write(self, text: str) -> int:
        try:
            return self._try(lambda: self.stream.write(text)) or len(text)
        except UnicodeEncodeError:
            known = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
            return self._try(lambda: self.stream.write(known)) or len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return None if self.broken else call()
        except OSError:
            self.broken = True
            with suppress(OSError, ValueError):  # what is still buffered would fail again when Python ends
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.stream.fileno())
                os.close(null)
            return None

    def close(self) -> None:
        """Leave the stream open, which belongs to the caller; io calls this when the object is deleted."""

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # rich declares an attribute
        return self.stream.encoding or "utf-8"


def console(stream: TextIO | None, **options: Any) -> Console:
    """A rich console on `stream`; None, a stream that was closed before Python started, shows nothing."""
    file = io.StringIO() if stream is None else TolerantStream(stream)
    return Console(file=cast(IO[str], file), highlight=False, **options)


FAILED, WRONG = 1, 2  # exit statuses: the run failed, the user's input is wrong


def failure(error: BaseException) -> tuple[str, int]:
    """What is printed of an error that ends a command, and the exit status."""
    if isinstance(error, AmpkitError) and not isinstance(error, NonFiniteError | DistError):
        return str(error), WRONG
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"failed: out of memory{detail}\nhelp: lower data.batch_size, or take a smaller model", FAILED
    return f"failed: {error}", FAILED


def need_writable(option: str, path: str | None) -> None:
    """Raise FileError now, for `option`, if its file could not be written in the end."""
    try:
        if path is not None:
            Path(path).touch()
    except OSError as error:
        raise FileError(option, "a file that can be written", f"{str(path)!r}: {error.strerror}") from None


_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}


def print_line(console: Console, line: str) -> None:
    """Print `line` as it is, however long: nothing in it is markup."""
    console.print(escape(line), soft_wrap=True)


def print_error(line: str, status: int) -> int:
    """Print `ampkit: line` to stderr; returns `status`."""
    console(sys.stderr, soft_wrap=True).print(f"ampkit: {escape(line)}")
    return status


def summary(
    recipe: Recipe,
    rows: Iterable[Row],
    per_step: int,
    unit: str,
    where: str,
    size: int | None = None,
    done: tuple[int, float] | None = None,
) -> Table:
    """A table that sums up a run: steps, rate, losses and scores.

    size: of its directory, in bytes. done: its steps, and their seconds; by default those of the last row.
    """
    rows = list(rows)
    steps = [row for row in rows if isinstance(row, StepRow)]
    evaluations = [row for row in rows if isinstance(row, EvalRow)]
    title = f"{recipe.model.name} on {recipe.data.name}, {recipe.amp.precision}"
    table = Table(show_header=False, title=title, title_justify="left")
    if steps:
        count, seconds = done or (steps[-1].step, steps[-1].seconds)
        table.add_row("steps", f"{count} in {_seconds(seconds)}")
        table.add_row("rate", f"{count * per_step / seconds:,.0f} {unit}/s" if seconds else "-")
        until = f", up to step {steps[-1].step}" if steps[-1].step < count else ""
        table.add_row("training loss", f"{_mean_loss(steps)}{until}")
    if evaluations:
        add_scores(table, evaluations[-1])
    if steps and recipe.amp.dtype == "float16":
        table.add_row("loss scale", f"{steps[-1].scale:g}, {steps[-1].skipped} steps skipped")
    table.add_row("run directory", where if size is None else f"{where}, {bytes_in_words(size)}")
    return table


def _mean_loss(rows: list[StepRow]) -> str:
    """The mean loss of the last third of the rows, at most ten: that of a single batch says little."""
    last = rows[-max(1, min(10, len(rows) // 3)) :]
    mean = f"{sum(row.loss for row in last) / len(last):.4f}"
    return mean if len(last) == 1 else f"{mean}, mean of the last {len(last)} rows"


def comparison(title: str, results: list[Result]) -> Table:
    """The precisions side by side, each compared in words with the first of them; what none of them has is left out."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(result.dtype, justify="right")
    for line in _LINES:
        values = [getattr(result, line.name) for result in results]
        if values == [None] * len(values):
            continue
        table.add_row(line.title, *(line.show(value) if value is not None else "-" for value in values))
        if line.words and values[0] and len(results) > 1:
            compared = [_compared(value, values[0], *line.words) for value in values[1:]]
            if line.name == "step_seconds":
                compared = [_speed(result, results[0]) for result in results[1:]]
            table.add_row(f"[dim]  against {results[0].dtype}[/]", "", *(f"[dim]{text}[/]" for text in compared))
    return table


def _compared(value: float | None, reference: float, below: str, above: str) -> str:
    """The ratio of two positive numbers in words: `1.50 x slower`."""
    if value is None or value <= 0:
        return "-"
    ratio, word = (value / reference, above) if value > reference else (reference / value, below)
    return f"{ratio:.2f} x {word}" if round(ratio, 2) != 1 else "the same"


def add_scores(table: Table, row: EvalRow | Scores) -> None:
    """Add the loss and the scores of an evaluation to a table, a row each."""
    table.add_row("validation loss", f"{row.val_loss:.4f}" + (" nats" if row.rmse is None else ""))
    for name, value in scores(row):
        table.add_row(name, value)


def scores(row: EvalRow | Scores) -> list[tuple[str, str]]:
    """(title, value) of an evaluation's scores that apply, as text."""
    named = dict(row.metrics) if isinstance(row, EvalRow) else {}  # those of a Trainer's own loss
    known = {name: value for name in _SCORES if (value := named.pop(name, getattr(row, name))) is not None}
    found = [(_SCORES[name][0], _SCORES[name][1](value)) for name, value in known.items()]
    return found + [(name, _number(value)) for name, value in named.items()]


def _seconds(value: float) -> str:
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


def _speed(result: Result, first: Result) -> str:
    found = speed_of(result, first)
    return found.short() if found is not None and is_sure(result, first, found) else "-"


def _range(quartiles: tuple[float, float]) -> str:
    return " to ".join(f"{value * 1e3:.3g}" for value in quartiles) + " ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


_SCORES: dict[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy", "{:.2%}".format),
    "mean_iou": ("mean IoU", "{:.2%}".format),
    "char_error_rate": ("character error rate", "{:.2%}".format),
    "rmse": ("RMSE", _number),
    "r2": ("R2", "{:.4f}".format),
}


class _Line(NamedTuple):
    """A line of `comparison`: field of Result, title, format, and the words for a smaller and a larger value."""

    name: str
    title: str
    show: Callable[[Any], str]
    words: tuple[str, str] | None = None


_LINES = [
    _Line("step_seconds", "time per step (median)", _seconds, ("faster", "slower")),
    _Line("quartiles", "  half of the steps", _range),
    _Line("seconds", "training time", _seconds),
    _Line("wall_seconds", "whole time", _seconds),
    _Line("peak_bytes", "peak memory of the process", bytes_in_words),
    _Line("run_bytes", "  of it, for the run", bytes_in_words, ("less", "more")),
    _Line("device_bytes", "peak memory of arrays on the GPU", bytes_in_words, ("less", "more")),
    _Line("val_loss", "validation loss", "{:.4f}".format, ("lower", "higher")),
    *(_Line(name, title, show) for name, (title, show) in _SCORES.items()),
    _Line("scale", "loss scale at the end", "{:g}".format),
    _Line("skipped", "skipped steps", str),
]


def key_table(section: str, name: str, keys: Iterable[Key]) -> Table:
    """The keys of a section: type, default, meaning."""
    title = escape(f"[{section}]{f' name = {chr(34)}{name}{chr(34)}' if name else ''}")
    table = Table(title=title, title_justify="left")
    for column in ("key", "type", "default", "meaning"):
        table.add_column(column)
    for key in keys:
        table.add_row(f"{section}.{key.name}", *map(escape, (key.type, key.default, key.meaning)))
    return table


def policy_table(policy: Policy, ops: Iterable[Op], backend: str) -> Table:
    """Every op: its category under `policy`, the dtype of its output, its kernels on `backend` in the order tried."""
    dtypes = {Cast.LOW: policy.dtype.name, Cast.FP32: "float32", Cast.WIDEST: "of its widest input"}
    dtypes |= {Cast.KEEP: "of its first input", Cast.BANNED: "refused"}
    table = Table(title=f"{policy!r} on {backend}", title_justify="left")
    for column in ("op", "file", "category", "dtype out", f"kernels on {backend}"):
        table.add_column(column)
    for op in sorted(ops, key=lambda op: (op.forward.module, op.name)):
        category = policy.category(op.name)
        table.add_row(op.name, op.forward.module, category.value, dtypes[category], _kernels(op, backend))
    return table


def _kernels(op: Op, backend: str) -> str:
    kernels = op.forward.kernels_of(backend)
    always = any(kernel.when is None for kernel in kernels)
    return ", ".join(dict.fromkeys([*(kernel.name for kernel in kernels), *([] if always else ["reference"])]))


def findings(found: Iterable[Finding]) -> Table:
    """The findings of `ampkit doctor`."""
    table = Table(show_header=False, box=None)
    for finding in found:
        table.add_row(finding.topic, _MARKS[finding.state], escape(finding.found), escape(finding.cure or ""))
    return table

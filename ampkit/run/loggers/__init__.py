"""Loggers: the rows of a run for TensorBoard, Weights & Biases, MLflow, trackio and spreadsheets, beside metrics.jsonl.

A thread writes them, so that a slow disk or network delays no step. A logger that fails, at its start or later, is left
out from then on, and a notice says so; training goes on, and metrics.jsonl has every row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import isfinite, nan
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, Self

from ...backends.threads import on_this_device
from ...base.errors import AmpkitError, ArgumentError
from ..trainer.rows import Row

# By name, the module of this package that has a class `Writer`, and what pip installs for it.
LOGGERS = {
    "csv": ("csv_file", None),
    "tensorboard": ("tensorboard_file", "tensorboard"),
    "wandb": ("wandb_run", "wandb"),
    "mlflow": ("mlflow_run", "mlflow-skinny"),
    "trackio": ("trackio_run", "trackio"),
}
SECONDS = 5.0  # between two writes of the rows that have come meanwhile; more often costs the clients more


class Metrics(NamedTuple):
    """A row: the step, its values by name, as in metrics.jsonl, and when it was logged, in seconds since 1970."""

    step: int
    values: Mapping[str, float]
    when: float


class Start(NamedTuple):
    """What a logger is told at the start: the run directory, the recipe as a dict, and the steps done before."""

    directory: Path
    recipe: Mapping[str, Any]
    done: int


class Writer(Protocol):
    """One logger: made with a Start, it gets every row in order, and is closed at the end."""

    def write(self, rows: Sequence[Metrics]) -> None:
        """Write rows."""

    def close(self) -> None:
        """Flush and close."""


class Loggers:
    """The loggers of a run; a context manager, in which a thread writes the rows.

    names: keys of LOGGERS. start: what each is told. notice: called with a line when one fails, from the thread too.
    make: makes a logger of a name; by default the one of LOGGERS.
    """

    def __init__(
        self,
        names: Sequence[str],
        start: Start,
        notice: Callable[[str], None],
        make: Callable[[str, Start], Writer] | None = None,
    ):
        self._notice, self._queue = notice, SimpleQueue[Metrics | None]()
        self._writers: dict[str, Writer] = {}
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        for name in names:
            self._try(name, partial(self._add, name, make or _made, start))

    def _add(self, name: str, make: Callable[[str, Start], Writer], start: Start) -> None:
        self._writers[name] = make(name, start)

    def write(self, row: Row | Mapping[str, Any]) -> None:
        """Hand over a row: one of `ampkit.run.loop`, or a mapping from names to numbers, `step` among them.

        Numbers that are not finite, and scores that do not apply, are left out. Raises ArgumentError for a row without
        an integer `step`, or with something else than numbers.
        """
        metrics = row_of(row)
        if self._writers:
            self._queue.put(metrics)

    def _try(self, name: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:  # of somebody else's client: no reason for the training to end
            self._writers.pop(name, None)
            line = str(error).strip().splitlines()
            what = f"{type(error).__name__}: {line[0]}" if line else type(error).__name__
            missing = isinstance(error.__cause__ or error, ImportError) and name in LOGGERS
            cure = f"; pip install {LOGGERS[name][1]}" if missing else ""
            self._notice(f"logger {name} is left out from here on: {what}{cure}; metrics.jsonl has every row")

    def _run(self) -> None:
        ended = False
        while not ended:
            rows, ended = self._taken()
            for name, writer in [*self._writers.items()] if rows else ():
                self._try(name, partial(writer.write, rows))
            if not ended:
                self._ending.wait(SECONDS)

    def _taken(self) -> tuple[list[Metrics], bool]:
        rows: list[Metrics] = []
        try:
            first = self._queue.get()
            while first is not None:
                rows.append(first)
                first = self._queue.get_nowait()
        except Empty:
            return rows, False
        return rows, True

    def __enter__(self) -> Self:
        if self._writers:
            self._thread = threading.Thread(target=on_this_device(self._run), name="ampkit loggers", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._ending.set()
            self._thread.join()
        for name, writer in [*self._writers.items()]:
            self._try(name, writer.close)


def row_of(row: Any) -> Metrics:
    """A row, checked, as of now: see `Loggers.write`."""
    named = row._asdict() if hasattr(row, "_asdict") else row.values() if isinstance(row, Row) else row
    named = named if isinstance(named, Mapping) else getattr(named, "__dict__", {})
    values = {name: _number(name, value) for name, value in named.items() if value is not None}
    step = values.pop("step", nan)
    if not step.is_integer():
        got = f"{row!r:.200}"
        raise ArgumentError("loggers.write", "a row of numbers by name with an integer `step`", got, _ROW)
    return Metrics(int(step), {name: value for name, value in values.items() if isfinite(value)}, time.time())


_ROW = 'write({"step": 1, "loss": 0.5})'


def _number(name: Any, value: Any) -> float:
    """A number of a row: of Python, NumPy, or a tensor of one value."""
    try:
        if isinstance(name, str) and not isinstance(value, (str, bytes, complex)):
            return float(value)
    except (TypeError, ValueError, OverflowError, AmpkitError):
        pass
    raise ArgumentError("loggers.write", "numbers by name", f"{name!r:.60}: {value!r:.60}", _ROW)


def _made(name: str, start: Start) -> Writer:
    made: Writer = import_module(f"{__name__}.{LOGGERS[name][0]}").Writer(start)
    return made

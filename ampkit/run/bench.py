"""Benchmark a recipe in several precisions, each in its own process, so that peak memory is measured separately."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from .. import cuda
from ..base import errors
from ..base.errors import AmpkitError
from ..config import Recipe
from ..debug import Ledger
from ..debug.peak_memory import peak_bytes
from .loop import EvalRow, Row, StepRow, fit
from .measure import measure
from .metrics import Scores

PRECISIONS = ("float32", "bfloat16", "float16")
# Ctrl-C reaches the whole process group: the worker ignores it, and its parent ends it.
_WORKER = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = {path!r}
from ampkit.run.bench import worker
raise SystemExit(worker())
"""


@dataclass(frozen=True)
class Started:
    """The start of a precision: it will make `steps` updates of `per_step` `unit` each."""

    dtype: str
    steps: int
    per_step: int
    unit: str


@dataclass(frozen=True)
class Result:
    """The measurements of a training in one precision.

    step_seconds: the median over steps but the first. seconds: all steps, without evaluations. wall_seconds: from the
    start of the process to the end of its training. peak_bytes: the peak resident memory of the process. run_bytes: its
    growth since before anything was built. Both are None where the system does not report it. device_bytes: the peak of
    arrays on the GPU; None on a CPU. val_loss, accuracy, mean_iou, char_error_rate, scale: at the end, see
    `metrics.Scores`. skipped: steps. measured: its plan and ledger, see `measure`, None if that failed. error: why
    it failed, or None.
    """

    dtype: str
    step_seconds: float | None = None
    seconds: float | None = None
    wall_seconds: float | None = None
    peak_bytes: int | None = None
    run_bytes: int | None = None
    device_bytes: int | None = None
    val_loss: float | None = None
    accuracy: float | None = None
    mean_iou: float | None = None
    char_error_rate: float | None = None
    scale: float | None = None
    skipped: int | None = None
    measured: dict[str, Any] | None = None
    error: str | None = None

    @property
    def ledger(self) -> Ledger | None:
        """Where a step's time and memory go, if it was measured."""
        return None if self.measured is None else Ledger(**self.measured["ledger"])


Event = Started | Row | Result


def bench(recipe: Recipe, precisions: Sequence[str] = PRECISIONS) -> Iterator[Event]:
    """Train `recipe` once per precision; for each yields Started, its rows as they come, and its Result.

    A recipe with `train.bench_steps` is trained for that many steps, its schedule scaled to that length.
    A recipe that cannot run here raises what `fit` raises, before the first Started. A run that fails later yields a
    Result with `error`.
    """
    for dtype in precisions:
        yield from _bench_one(with_dtype(recipe, dtype))


def with_dtype(recipe: Recipe, dtype: str) -> Recipe:
    """The recipe of a benchmark of `recipe` in a precision."""
    amp = recipe.amp.model_copy(update={"dtype": dtype})
    train: dict[str, Any] = {"log_every": 1}
    if recipe.train.bench_steps is not None:
        train |= {"steps": recipe.train.bench_steps, "epochs": None}
    debug = recipe.debug.model_copy(update={"ranges_every": 0})
    return recipe.model_copy(update={"amp": amp, "debug": debug, "train": recipe.train.model_copy(update=train)})


def _bench_one(recipe: Recipe) -> Iterator[Event]:
    start = time.perf_counter()
    command = [sys.executable, "-c", _WORKER.format(path=sys.path)]  # the same ampkit that runs here
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    rows: list[Row] = []
    kind, started = "", False
    last: dict[str, Any] = {}
    found: dict[str, Any] | None = None
    wall = 0.0
    try:
        with process.stdin as stdin:
            stdin.write(recipe.model_dump_json())
        for line in process.stdout:
            message = json.loads(line)
            if message[0] == "Measured":
                found = message[1]
                continue
            kind, last = message
            wall = time.perf_counter() - start
            if kind in _EVENTS:
                started = True
                event = _EVENTS[kind](**last)
                rows += [event] if not isinstance(event, Started) else []
                yield event
        code = process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    if kind == "Failed" and not started:
        raise getattr(errors, last["kind"])(last["error"])
    if kind not in ("Failed", "Done"):
        last = {"error": f"the process ended early, with status {code}"}
    yield replace(_result(recipe.amp.dtype, rows, last, wall), measured=found)


_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in (Started, StepRow, EvalRow)}


def _result(dtype: str, rows: list[Row], last: dict[str, Any], wall: float) -> Result:
    """The result, from the rows and the last message of the process."""
    steps = [row for row in rows if isinstance(row, StepRow)]
    evaluations = [row for row in rows if isinstance(row, EvalRow)]
    times = [after.seconds - before.seconds for before, after in pairwise(steps)]
    found: dict[str, Any] = {"wall_seconds": wall}
    found |= {name: last.get(name) for name in ("error", "peak_bytes", "run_bytes", "device_bytes")}
    if steps:
        found |= {"seconds": steps[-1].seconds, "scale": steps[-1].scale, "skipped": steps[-1].skipped}
        found["step_seconds"] = statistics.median(times or [steps[-1].seconds])
    if evaluations:
        found |= {name: getattr(evaluations[-1], name) for name in Scores._fields}
    return Result(dtype, **found)


def worker() -> int:
    """The process of one precision: reads a recipe as JSON from stdin, writes messages as lines of JSON to stdout."""
    recipe = Recipe.model_validate_json(sys.stdin.read())
    before = peak_bytes()
    try:
        if recipe.train.device != "cpu":
            cuda.reset_peak_memory_stats(recipe.train.device)
        steps = _train(recipe, before)
    except AmpkitError as error:
        _send("Failed", {"kind": type(error).__name__, "error": str(error)})
        return 1
    except BrokenPipeError:  # the parent is gone
        return 1
    with suppress(AmpkitError, BrokenPipeError):  # what was measured stands without it
        _send("Measured", measure(recipe, steps))
    return 0


def _train(recipe: Recipe, before: int | None) -> int:
    """Train, and send what is found; returns the number of steps. before: the peak memory at the start."""
    run = fit(recipe)
    _send("Started", asdict(Started(recipe.amp.dtype, run.steps, run.per_step, run.unit)))
    for row in run:
        _send(type(row).__name__, asdict(row))
    peak = peak_bytes()
    growth = None if peak is None or before is None else peak - before
    held = None if recipe.train.device == "cpu" else cuda.max_memory_allocated(recipe.train.device)
    _send("Done", {"peak_bytes": peak, "run_bytes": growth, "device_bytes": held})
    return run.steps


def _send(kind: str, content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps([kind, content]) + "\n")
    sys.stdout.flush()

"""Benchmark a recipe in several precisions, each in its own process, so that peak memory is measured separately.

On a CPU the processes take turns of a few steps: while one trains the others wait, and what else the computer does
slows all of them alike. On a GPU they train one after the other, since each wants its memory.
"""

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
from ..core.policy.recipe import family_of_name
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

    step_seconds: the median over steps but the first. quartiles: between which half of them are. turns: the median of
    each turn, None for a run that took none. seconds: all steps, without evaluations. wall_seconds: of the process, to
    the end of its training, without waiting for others. peak_bytes: the peak resident memory of the process. run_bytes:
    its growth since before anything was built. Both are None where the system does not report it. device_bytes: the
    peak of arrays on the GPU; None on a CPU. val_loss, accuracy, mean_iou, char_error_rate, rmse, r2, scale: at the
    end, see `metrics.Scores`. skipped: steps. measured: its plan and ledger, see `measure`, None if that failed. error:
    why it failed, or None.
    """

    dtype: str
    step_seconds: float | None = None
    quartiles: tuple[float, float] | None = None
    turns: tuple[float, ...] | None = None
    seconds: float | None = None
    wall_seconds: float | None = None
    peak_bytes: int | None = None
    run_bytes: int | None = None
    device_bytes: int | None = None
    val_loss: float | None = None
    accuracy: float | None = None
    mean_iou: float | None = None
    char_error_rate: float | None = None
    rmse: float | None = None
    r2: float | None = None
    scale: float | None = None
    skipped: int | None = None
    measured: dict[str, Any] | None = None
    error: str | None = None

    @property
    def ledger(self) -> Ledger | None:
        """Where a step's time and memory go, if it was measured."""
        return None if self.measured is None else Ledger(**self.measured["ledger"])


Event = Started | Row | Result


def precisions_of(recipe: Recipe) -> tuple[str, ...]:
    """float32 and the 16-bit dtypes, and the recipe below 16 bits if amp has one."""
    return tuple(dict.fromkeys((*PRECISIONS, recipe.amp.precision)))


def bench(recipe: Recipe, precisions: Sequence[str] | None = None) -> Iterator[tuple[str, Event]]:
    """Train `recipe` once per precision; yields the precision with its Started, its rows as they come, and its Result.

    precisions: dtypes and names of recipes below 16 bits, by default those of `precisions_of`.
    A recipe with `train.bench_steps` is trained for that many steps, its schedule scaled to that length.
    A recipe that cannot run here raises what `fit` raises, before the first row. A run that fails later yields a Result
    with `error`.
    """
    precisions = precisions_of(recipe) if precisions is None else precisions
    together = [list(precisions)] if recipe.train.device == "cpu" else [[dtype] for dtype in precisions]
    for several in together:
        workers: list[_Process] = []
        try:
            for dtype in several:  # one after the other, so that none slows the start of another
                workers.append(_Process(with_dtype(recipe, dtype)))
                yield from workers[-1].events()
            yield from _in_turns(workers)
        finally:
            for worker in workers:
                worker.end()


def _in_turns(workers: Sequence[_Process]) -> Iterator[tuple[str, Event]]:
    steps = _WARMUP
    while running := [worker for worker in workers if worker.running]:
        for worker in running:
            worker.take_turn(steps if len(workers) > 1 else _ALL)
            yield from worker.events()
        steps = max(_turn_of(worker) for worker in workers)
    for worker in workers:
        yield worker.dtype, worker.result()


_WARMUP, _ALL = 2, 2**31  # steps of the first turn, and of one that takes all
_SHORTEST, _TURN_SECONDS, _TURNS = 3, 0.1, 12  # steps of a turn at least, how long it is to take, and turns at least


def _turn_of(worker: _Process) -> int:
    """How many steps the next turn takes: the same for all."""
    times = worker.times()
    wanted = int(_TURN_SECONDS / statistics.median(times[1:] or times)) if times else _SHORTEST
    return max(1, min(max(_SHORTEST, wanted), worker.steps // _TURNS))


def with_dtype(recipe: Recipe, dtype: str) -> Recipe:
    """The recipe of a benchmark of `recipe` in a precision."""
    family = family_of_name(dtype)
    changed = {"dtype": dtype, "recipe": None} if family is None else {"dtype": family, "recipe": dtype}
    amp = recipe.amp if dtype == recipe.amp.precision else recipe.amp.model_copy(update=changed)
    train: dict[str, Any] = {"log_every": 1}
    if recipe.train.bench_steps is not None:
        train |= {"steps": recipe.train.bench_steps, "epochs": None}
    debug = recipe.debug.model_copy(update={"ranges_every": 0})
    return recipe.model_copy(update={"amp": amp, "debug": debug, "train": recipe.train.model_copy(update=train)})


class _Process:
    """The process of one precision. running: whether it waits for a turn."""

    def __init__(self, recipe: Recipe):
        self.dtype, self.running, self.steps = recipe.amp.precision, True, 0
        self._rows: list[list[Row]] = []  # by turn
        self._wall, self._last, self._kind = 0.0, dict[str, Any](), ""
        self._measured: dict[str, Any] | None = None
        command = [sys.executable, "-c", _WORKER.format(path=sys.path)]  # the same ampkit that runs here
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._write(recipe.model_dump_json())

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: its messages end
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def take_turn(self, steps: int) -> None:
        """Let it train for `steps` steps, or measure, if it has trained."""
        self._rows.append([])
        self._write(str(steps))

    def events(self) -> Iterator[tuple[str, Event]]:
        """What it sends until its turn ends."""
        start = time.perf_counter()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, content = json.loads(line)
            if kind == "Measured":
                self._measured = content
            elif kind != "Turn":
                self._kind, self._last = kind, content
            if kind in _EVENTS:
                event = _EVENTS[kind](**content)
                if isinstance(event, Started):
                    self.steps = event.steps
                else:
                    self._rows[-1].append(event)
                yield self.dtype, event
            if self._measured is None and self._kind != "Done":
                self._wall += time.perf_counter() - start
                start = time.perf_counter()
            if kind == "Turn":
                return
        self.running = False
        self._process.wait()
        if self._kind == "Failed" and not self.steps:
            raise getattr(errors, self._last["kind"])(self._last["error"])

    def times(self) -> list[float]:
        """The seconds of each step."""
        steps = [row for rows in self._rows for row in rows if isinstance(row, StepRow)]
        return [after.seconds - before.seconds for before, after in pairwise(steps)]

    def result(self) -> Result:
        """What the process has measured."""
        last = self._last
        if self._kind not in ("Failed", "Done"):
            last = {"error": f"the process ended early, with status {self._process.returncode}"}
        return replace(_result(self.dtype, self._rows, last, self._wall), measured=self._measured)

    def end(self) -> None:
        """End it, if it runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()


_EVENTS: dict[str, Any] = {kind.__name__: kind for kind in (Started, StepRow, EvalRow)}


def _result(dtype: str, turns: list[list[Row]], last: dict[str, Any], wall: float) -> Result:
    """The result, from the rows of each turn and the last message of the process."""
    rows = [row for turn in turns for row in turn]
    steps = [row for row in rows if isinstance(row, StepRow)]
    evaluations = [row for row in rows if isinstance(row, EvalRow)]
    times = {after.step: after.seconds - before.seconds for before, after in pairwise(steps)}
    found: dict[str, Any] = {"wall_seconds": wall}
    found |= {name: last.get(name) for name in ("error", "peak_bytes", "run_bytes", "device_bytes")}
    if steps:
        found |= {"seconds": steps[-1].seconds, "scale": steps[-1].scale, "skipped": steps[-1].skipped}
        found["step_seconds"] = statistics.median(times.values() or [steps[-1].seconds])
    if len(times) > 1:
        first, _, third = statistics.quantiles(times.values(), n=4, method="inclusive")
        found["quartiles"] = first, third
        taken = [[times[row.step] for row in turn if row.step in times] for turn in turns[1:]]  # the first warms up
        found["turns"] = tuple([statistics.median(each) for each in taken if each]) or None
    if evaluations:
        found |= {name: getattr(evaluations[-1], name) for name in Scores._fields}
    return Result(dtype, **found)


def worker() -> int:
    """The process of one precision: reads a recipe as JSON from stdin, writes messages as lines of JSON to stdout.

    Before each turn it reads for how many steps; at the end of stdin it ends.
    """
    recipe = Recipe.model_validate_json(sys.stdin.readline())
    before = peak_bytes()
    try:
        if recipe.train.device != "cpu":
            cuda.reset_peak_memory_stats(recipe.train.device)
        steps = _train(recipe, before)
    except AmpkitError as error:
        _send("Failed", {"kind": type(error).__name__, "error": str(error)})
        return 1
    except (BrokenPipeError, EOFError):  # the parent is gone
        return 1
    with suppress(AmpkitError, BrokenPipeError, EOFError):  # what was measured stands without it
        _turn()
        _send("Measured", measure(recipe, steps))
    return 0


def _train(recipe: Recipe, before: int | None) -> int:
    """Train, and send what is found; returns the number of steps. before: the peak memory at the start."""
    run = fit(recipe)
    _send("Started", asdict(Started(recipe.amp.precision, run.steps, run.per_step, run.unit)))
    left = _turn()
    for row in run:
        _send(type(row).__name__, asdict(row))
        left -= isinstance(row, StepRow)
        if left == 0 and not run.finished:
            left = _turn()
    peak = peak_bytes()
    growth = None if peak is None or before is None else peak - before
    held = None if recipe.train.device == "cpu" else cuda.max_memory_allocated(recipe.train.device)
    _send("Done", {"peak_bytes": peak, "run_bytes": growth, "device_bytes": held})
    return run.steps


def _turn() -> int:
    """End this turn and wait for the next one. -> its number of steps."""
    _send("Turn", {})
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return int(line)


def _send(kind: str, content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps([kind, content]) + "\n")
    sys.stdout.flush()

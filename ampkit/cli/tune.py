"""`ampkit tune`: search the fastest policy of a recipe, and show how it was found."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from .. import config
from ..base.atomic_file import write
from ..debug.policy_search.choices import Choice
from ..debug.policy_search.cost import Cost
from ..debug.policy_search.sensitivity import Sensitivity
from ..debug.policy_search.tuning import Progress, Tuning, percent
from ..run.search.tune import TunedRecipe, tune_recipe
from ..run.search.turns import Trained
from .display import need_writable, print_line
from .train import overrides

_LONG = 5.0  # seconds: a stage that takes longer says so when it starts


def add_arguments(command: argparse.ArgumentParser, path: Any) -> None:
    """The arguments of the command after the recipe's; path: the type of a path."""
    what = "the largest relative error of the loss against float32's: 0.01 (default)"
    command.add_argument("--error", type=share, default=0.01, help=what)
    what = "batches that the errors are measured on: 4 (default)"
    command.add_argument("--batches", type=count, default=4, metavar="N", help=what)
    what = "by default the recipe's, or what autocast uses on its device"
    command.add_argument("--dtype", choices=("bfloat16", "float16"), help=what)
    what = "of the training that verifies; by default train.bench_steps, or at most 300"
    command.add_argument("--steps", type=count, metavar="N", help=what)
    command.add_argument("--json", type=path, metavar="FILE", help="also write the results to a file")


def share(text: str) -> float:
    """A number above 0, as an argument."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"needs a number above 0, got {text}")
    return value


def count(text: str) -> int:
    """A number from 1, as an argument."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"needs a number from 1, got {text}")
    return value


def run(options: argparse.Namespace, console: Console) -> int:
    """Tune the recipe of the command line; returns the exit status."""
    recipe = config.load(options.recipe, overrides(options))
    need_writable("--json", options.json)
    start = time.perf_counter()
    with Meter(console) as meter:
        found = tune_recipe(recipe, options.dtype, options.error, options.batches, options.steps, meter.show)
    console.print(_choices(found.tuning))
    print_line(console, found.tuning.summary())
    console.print(_policies(found))
    for each in found.trained:
        if each.failure:
            print_line(console, f"{each.timed.name} failed: {each.failure}")
    print_line(console, found.note)
    print_line(console, f"\n{found.toml()}\n{found.policy!r}" if found.policy else f"\n{found.toml()}")
    console.print(f"whole time: {time.perf_counter() - start:.1f} s")
    if options.json:
        write("--json", options.json, (json.dumps(_as_json(options, found), indent=2) + "\n").encode())
    return 0


class Meter:
    """The progress of stages: a bar on a terminal, elsewhere a line for each, and one ahead of those that are long."""

    def __init__(self, console: Console):
        self._console, self._stage, self._start = console, "", 0.0
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
        if progress.stage != self._stage:
            self._stage, self._start, self._first = progress.stage, now, progress.done
            self._bar.reset(self._task, description=progress.stage)
        self._bar.update(self._task, completed=progress.done, total=progress.total)
        done, left = progress.done - self._first, progress.total - progress.done
        if self._console.is_terminal or not done:
            return
        if done == 1 and (now - self._start) * left > _LONG:
            line = f"{progress.stage}: {progress.total} passes, about {(now - self._start) * left:.0f} s"
            print_line(self._console, line)
        elif not left and progress.total > 1:
            print_line(self._console, f"{progress.stage}: {progress.total} passes in {now - self._start:.1f} s")


def _choices(tuning: Tuning) -> Table:
    dtype = _dtype(tuning)
    table = Table(title=f"what {dtype} changes and saves, each alone", title_justify="left")
    table.add_column("module or op")
    for column in ("error", "float32", "saves", "memory saved"):
        table.add_column(column, justify="right")
    table.add_column("search")
    for choice, sensitivity, spent, low in tuning.rows:
        times = f"{spent.float32 * 1e3:.3f} ms", f"{spent.seconds * 1e3:.3f} ms"
        name = f"{choice.name} (op)" if choice.is_op else choice.name
        memory = f"{spent.bytes / 1e6:.2f} MB"
        table.add_row(escape(name), percent(sensitivity.error), *times, memory, dtype if low else "float32")
    return table


def _policies(found: TunedRecipe) -> Table:
    table = Table(title=f"trained for {found.steps} steps from the same seed", title_justify="left")
    table.add_column("policy")
    for column in ("mean training loss", "against float32", "validation loss", "time per step (median)"):
        table.add_column(column, justify="right")
    for each in found.trained:
        spent = f"{each.timed.seconds * 1e3:.2f} ms"
        table.add_row(each.timed.name, f"{each.loss:.4f}", percent(each.timed.error), f"{each.val_loss:.4f}", spent)
    return table


def _dtype(tuning: Tuning) -> str:
    policies: Sequence[Any] = [each.policy for each in tuning.policies if each.policy]
    return str(policies[0].dtype.name)


def _as_json(options: argparse.Namespace, found: TunedRecipe) -> dict[str, Any]:
    return {
        "recipe": options.recipe,
        "overrides": options.overrides,
        "policy": repr(found.policy) if found.policy else None,
        "toml": found.toml(),
        "note": found.note,
        **{name: getattr(found.tuning, name) for name in ("error", "predicted", "measured", "solver")},
        "steps": found.steps,
        "choices": [_choice(*row) for row in found.tuning.rows],
        "trained": [_trained(each) for each in found.trained],
    }


def _choice(choice: Choice, found: Sensitivity, spent: Cost, low: bool) -> dict[str, Any]:
    errors = {"loss_error": _number(found.loss), "gradient_error": _number(found.gradient)}
    return {"name": choice.name, "is_op": choice.is_op, "low": low, **errors, **spent._asdict()}


def _trained(each: Trained) -> dict[str, Any]:
    found = {"name": each.timed.name, "policy": repr(each.timed.policy) if each.timed.policy else None}
    numbers = {"error": each.timed.error, "seconds": each.timed.seconds, "loss": each.loss, "val_loss": each.val_loss}
    return found | {name: _number(value) for name, value in numbers.items()} | {"failure": each.failure}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no other numbers

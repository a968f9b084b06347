"""`ampkit tune`: search the fastest policy of a recipe, and show how it was found."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import config
from ..base.atomic_file import write
from ..base.errors import ConfigError
from ..debug.policy_search.choices import Choice
from ..debug.policy_search.cost import Cost
from ..debug.policy_search.sensitivity import Sensitivity
from ..debug.policy_search.tuning import Tuning, percent
from ..run.search.tune import TunedRecipe, tune_recipe
from ..run.search.turns import Trained
from . import tune_formats
from .display import need_writable, print_line
from .lab import take_formats
from .meter import Meter
from .train import overrides


def run(options: argparse.Namespace, console: Console) -> int:
    """Tune the recipe of the command line; returns the exit status."""
    take_formats(options)
    if options.formats:
        return tune_formats.run(options, console)
    if options.memory is not None:
        raise ConfigError("--memory", "--formats beside it", "none", "--formats mxfp8,nvfp4")
    recipe = config.load(options.recipe, overrides(options))
    need_writable("--json", options.json)
    start = time.perf_counter()
    with Meter(console) as meter:
        found = tune_recipe(recipe, options.dtype, options.error or 0.01, options.batches, options.steps, meter.show)
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

"""`ampkit tune --formats`: search the policy below 16 bits of a recipe within a budget, and show how it was found."""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import config
from ..base.atomic_file import write
from ..base.byte_sizes import bytes_in_words
from ..base.errors import ConfigError
from ..debug.policy_search.format_tuning import FormatTuning
from ..debug.policy_search.tuning import percent
from ..run.search.formats import TunedFormats, tune_formats_recipe
from .display import need_writable, print_line
from .lab import layers, trainings
from .meter import Meter
from .train import overrides


def run(options: argparse.Namespace, console: Console) -> int:
    """Tune the recipe of the command line in `options.formats`; returns the exit status."""
    if options.error is not None and options.memory is not None:
        raise ConfigError("--memory", "no --error beside it", "both", "the least error within the memory is searched")
    dtype = [f"amp.dtype={options.dtype}"] if options.dtype else []
    recipe = config.load(options.recipe, [*overrides(options), *dtype])
    need_writable("--json", options.json)
    start = time.perf_counter()
    with Meter(console) as meter:
        found = tune_formats_recipe(
            recipe, options.formats, options.error, options.memory, options.batches, options.steps, meter.show
        )
    console.print(layers(found.tuning.found, found.tuning.error or 0.01))
    console.print(_chosen(found.tuning))
    print_line(console, found.tuning.summary())
    console.print(trainings(found.trained, found.steps, found.tuning.found.dtype))
    for each in found.trained:
        if each.failure:
            print_line(console, f"{each.timed.name} failed: {each.failure}")
    print_line(console, found.note)
    print_line(console, f"\n{found.toml()}\n{found.policy!r}")
    console.print(f"whole time: {time.perf_counter() - start:.1f} s")
    if options.json:
        write("--json", options.json, (json.dumps(_as_json(options, found), indent=2) + "\n").encode())
    return 0


def _rows(tuning: FormatTuning) -> list[tuple[str, str, float, float, int]]:
    # Of each layer: its format, its error, its work relative to 16 bits, the bytes that it keeps.
    by_recipe = {(row.layer, row.recipe): row for row in tuning.found.layers}
    rows = []
    for layer, wide in tuning.found.wide.items():
        row = by_recipe.get((layer, tuning.chosen.get(layer, "")))
        error, cost = (0.0, wide) if row is None else (row.sensitivity.error, row.cost)
        rows.append((layer, row.recipe if row else tuning.found.dtype, error, cost.work / (wide.work or 1), cost.kept))
    return rows


def _chosen(tuning: FormatTuning) -> Table:
    table = Table(title="what the search takes", title_justify="left")
    table.add_column("layer")
    table.add_column("format")
    for column in ("error", "work", "kept for backward", "in 16 bits"):
        table.add_column(column, justify="right")
    for layer, name, error, work, kept in _rows(tuning):
        sizes = bytes_in_words(kept), bytes_in_words(tuning.found.wide[layer].kept)
        table.add_row(escape(layer), name, percent(error), f"{work:.0%}", *sizes)
    return table


def _as_json(options: argparse.Namespace, found: TunedFormats) -> dict[str, Any]:
    tuning = found.tuning
    names = ("layer", "format", "error", "work", "kept")
    return {
        "recipe": options.recipe,
        "overrides": [*options.overrides],
        "policy": repr(found.policy),
        "toml": found.toml(),
        "note": found.note,
        "error": tuning.error,
        "memory": tuning.memory,
        "predicted": _number(tuning.predicted),
        "measured": _number(tuning.measured),
        "work": tuning.work,
        "kept": tuning.kept,
        "solver": tuning.solver,
        "steps": found.steps,
        "layers": [dict(zip(names, row, strict=True)) | {"error": _number(row[2])} for row in _rows(tuning)],
        "trained": [
            {"name": each.timed.name, "policy": repr(each.timed.policy), "error": _number(each.timed.error),
             "loss": _number(each.loss), "val_loss": _number(each.val_loss), "failure": each.failure}
            for each in found.trained
        ],
    }  # fmt: skip


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no other numbers

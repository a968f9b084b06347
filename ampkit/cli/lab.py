"""`ampkit lab`: which layers of a recipe's model survive which format below 16 bits, and what its loss becomes."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import config
from ..base.atomic_file import write
from ..base.errors import ConfigError
from ..core.policy.recipe import FAMILIES, RECIPES
from ..core.policy.recipe import recipe as named
from ..debug.policy_search.formats import FORMATS, Laboratory
from ..debug.policy_search.tuning import percent
from ..run.search.lab import LAB, LabRecipe, lab_recipe
from ..run.search.turns import Trained
from .display import need_writable, print_line
from .meter import Meter
from .train import overrides


def formats(text: str) -> tuple[str, ...]:
    """Names of recipes, as an argument; "float8", "float4" and "int8" mean the first of each."""
    try:
        return tuple([named(FAMILIES.get(name.strip(), (name.strip(),))[0]).name for name in text.split(",")])
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).partition("\n")[0]) from None


def take_formats(options: argparse.Namespace) -> None:
    """Let formats that stand after others, separated by spaces, be formats and not keys of the recipe."""
    known = {*RECIPES, *FAMILIES} if options.formats else ()
    more = [word for word in options.overrides if word in known]
    options.overrides = [word for word in options.overrides if word not in more]
    given = (*options.formats, *(name for word in more for name in formats(word)))
    options.formats = tuple(dict.fromkeys(given))


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure the recipe of the command line; returns the exit status."""
    take_formats(options)
    recipe = config.load(options.recipe, overrides(options))
    files = [Path(options.json)] if options.json else []
    files += [Path(options.run_dir) / LAB] if options.run_dir else []
    for file in files:
        need_writable("--json" if options.json == str(file) else "--run-dir", str(file))
    start = time.perf_counter()
    with Meter(console) as meter:
        found = lab_recipe(
            recipe, options.formats or FORMATS, options.budget, options.batches, options.steps,
            trains=not options.measure_only, show=meter.show,
        )  # fmt: skip
    _print(console, found)
    console.print(f"whole time: {time.perf_counter() - start:.1f} s")
    for file in files:
        write("lab", file, (json.dumps(found.as_json(), indent=2) + "\n").encode())
    return 0


def _print(console: Console, found: LabRecipe) -> None:
    console.print(layers(found.found, found.budget))
    console.print(_operands(found.found))
    if found.trained:
        console.print(_trained(found))
    console.print(_cards(found.found))
    for each in found.trained:
        if each.failure:
            print_line(console, f"{each.timed.name} failed: {each.failure}")
    title = f"the least work with a predicted error of at most {percent(found.budget)}"
    print_line(console, f"{title}:\n\n{found.toml()}\n{found.policy!r}")
    if found.note:
        print_line(console, found.note)


def layers(found: Laboratory, budget: float) -> Table:
    """The table of errors by layer and format, green where they are far below `budget`."""
    title = f"error of the loss that each layer alone is predicted to cause, against {found.dtype}"
    table = Table(title=title, title_justify="left")
    table.add_column("layer")
    errors = {(row.layer, row.recipe): row.sensitivity.error for row in found.layers}
    for name in found.ranking():
        table.add_column(name, justify="right")
    for layer in dict.fromkeys(row.layer for row in found.layers):
        table.add_row(escape(layer), *(_cell(errors[layer, name], budget) for name in found.ranking()))
    table.add_section()
    table.add_row("all layers", *(_cell(each.sensitivity.error, budget) for each in found.formats))
    for title, errors_of_part in found.parts():
        cells = ("-" if each is None else _cell(each.error, budget) for each in errors_of_part)
        table.add_row(escape(f"  {title}"), *cells)
    table.add_section()
    title, sizes = found.memory()
    table.add_row(title, *sizes)
    return table


def _cell(error: float, budget: float) -> str:
    color = "green" if error <= budget / 10 else "yellow" if error <= budget else "red"
    return f"[{color}]{percent(error)}[/]"


def _operands(found: Laboratory) -> Table:
    title = "products that change the most: relative error, values flushed to 0, and saturated"
    table = Table(title=title, title_justify="left")
    for column in ("recipe", "layer", "product"):
        table.add_column(column)
    for column in ("error", "flushed, both operands", "saturated"):
        table.add_column(column, justify="right")
    for name in found.ranking():
        rows = [
            (row.layer, product, loss)
            for row in found.layers
            if row.recipe == name
            for product, loss in row.products.items()
        ]
        layer, product, loss = max(rows, key=lambda row: row[2].error)
        shares = (" and ".join(map(percent, both)) for both in (loss.flushed, loss.saturated))
        table.add_row(name, escape(layer), product, percent(loss.error), *shares)
    return table


def _trained(found: LabRecipe) -> Table:
    return trainings(found.trained, found.steps, found.found.dtype)


def trainings(trained: Sequence[Trained], steps: int, dtype: str) -> Table:
    """The table of losses by policy, the first of which is the 16-bit one in `dtype`."""
    table = Table(title=f"trained for {steps} steps from the same seed", title_justify="left")
    table.add_column("format")
    for column in ("mean training loss", f"against {dtype}", "validation loss", f"against {dtype}"):
        table.add_column(column, justify="right")
    for each in trained:
        pairs = (each.loss, trained[0].loss), (each.val_loss, trained[0].val_loss)
        cells = [cell for loss, base in pairs for cell in (f"{loss:.4f}", _change(loss, base))]
        table.add_row(each.timed.name, *cells)
    return table


def _change(loss: float, base: float) -> str:
    change = (loss - base) / abs(base) if base else math.nan
    return f"{change:+.2%}" if math.isfinite(change) else "not finite"


def _cards(found: Laboratory) -> Table:
    title = "speed of products, speed and memory of steps, on cards: published, against bfloat16"
    table = Table(title=title, title_justify="left")
    table.add_column("card")
    for name in found.ranking():
        table.add_column(name, justify="right")
    table.add_column("source")
    for name, cells, source in found.cards():
        table.add_row(name, *cells, source)
    return table

"""`ampkit summary`: the layers of a recipe, its parameters and operations, and its memory in each precision."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import config
from ..base.byte_sizes import bytes_in_words
from ..run.summary import Summary, summarize
from .display import print_line
from .progress import status
from .train import overrides


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the summary of the recipe of the command line; returns the exit status."""
    recipe = config.load(options.recipe, overrides(options))
    with status(console, f"building {recipe.model.name} and running steps of it"):
        found = summarize(recipe)
    console.print(_layers(f"{recipe.model.name} on {recipe.data.name}", found))
    console.print(_memory(found))
    operations = f"{in_words(found.forward)} forward, {in_words(found.backward)} backward"
    update = f"an update of {found.per_step:,} {found.unit}"
    print_line(console, f"{found.parameters:,} parameters; {update}: {operations}")
    return 0


def in_words(operations: float) -> str:
    """A number of floating-point operations: 1.23 GFLOP."""
    for prefix in ("", "k", "M", "G"):
        if operations < 1000:
            return f"{operations:.3g} {prefix}FLOP"
        operations /= 1000
    return f"{operations:,.3g} TFLOP"


def _layers(title: str, found: Summary) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("layer", overflow="fold")
    table.add_column("type")
    for name in ("number", "parameters", "forward of a batch"):
        table.add_column(name, justify="right")
    for layer in found.layers:
        flops = in_words(layer.flops) if layer.flops else "-"
        table.add_row(escape(layer.path), layer.kind, str(layer.number), f"{layer.parameters:,}", flops)
    return table


def _memory(found: Summary) -> Table:
    table = Table(title="memory of a step", title_justify="left")
    table.add_column("")
    for dtype in found.memory:
        table.add_column(dtype, justify="right")
    names = dict.fromkeys(name for held in found.memory.values() for name, size in held.items() if size)
    rows = [(name, [held.get(name, 0) for held in found.memory.values()]) for name in names]
    rows.append(("all", [sum(held.values()) for held in found.memory.values()]))
    for name, sizes in rows:
        table.add_row(name, *(bytes_in_words(size) if size else "-" for size in sizes))
    return table

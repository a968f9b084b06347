"""`ampkit quantize`: a trained run in int8, what each layer loses by it, and what it saves."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..base.byte_sizes import bytes_in_words
from ..debug.policy_search.tuning import percent
from ..run.export import export, need_empty
from ..run.quantize import QuantizedRun, quantize_run
from ..run.trained import load_run
from .display import print_line, scores


def run(options: argparse.Namespace, console: Console) -> int:
    """Quantize the run of the command line and write it; returns the exit status."""
    to = Path(options.to or Path(options.directory) / "int8")
    need_empty("quantize", to)  # before the work, not after it
    found = load_run(options.directory, options.weights)
    show = lambda stage: print_line(console, f"{stage} ...")  # noqa: E731
    made = quantize_run(found, options.observer, options.skip, options.budget, options.batches, show)
    console.print(_layers(made))
    console.print(_comparison(made))
    for file in export(made.found, to):
        print_line(console, f"{file}  {bytes_in_words(file.stat().st_size)}")
    print_line(console, f"to use it: ampkit evaluate {to}, or ampkit.load_run({str(to)!r}) in Python")
    return 0


def _layers(made: QuantizedRun) -> Table:
    table = Table(title="what int8 changes in the training loss, each layer alone", title_justify="left")
    table.add_column("layer")
    table.add_column("loss rises by", justify="right")
    table.add_column("runs in")
    for layer in made.layers:
        table.add_row(escape(layer.path), percent(layer.error), "int8" if layer.int8 else "bfloat16")
    return table


def _comparison(made: QuantizedRun) -> Table:
    recipe = made.found.recipe
    table = Table(title=f"{recipe.model.name} on {recipe.data.name}", title_justify="left")
    for column in ("", recipe.amp.dtype, "int8"):
        table.add_column(column, justify="right" if column else "left")
    for row in zip(_cells(made, 0), _cells(made, 1), strict=True):
        (name, before), (_, after) = row
        table.add_row(name, before, after)
    return table


def _cells(made: QuantizedRun, side: int) -> list[tuple[str, str]]:
    """The rows of one column, before (0) or after (1): (title, value)."""
    found = (made.before, made.after)[side]
    loss, size = ("validation loss", f"{found.val_loss:.4f}"), ("weights", bytes_in_words(made.nbytes[side]))
    return [loss, *scores(found), size, ("forward of a batch", f"{made.seconds[side] * 1e3:.2f} ms")]

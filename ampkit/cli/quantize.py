"""`ampkit quantize`: a trained run in int8, what each layer loses by it, and what it saves."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..base.byte_sizes import bytes_in_words
from ..debug.policy_search.tuning import percent
from ..run.export import export, need_empty
from ..run.quantize import QuantizedRun, quantize_run
from ..run.trained import load_run
from .display import print_line, scores

_OBSERVERS = ("minmax", "percentile", "entropy")


def add_arguments(command: argparse.ArgumentParser, path: Any) -> None:
    """The arguments of the command; path: the type of a path."""
    command.add_argument("directory", type=path, metavar="RUN", help="the directory of the run")
    what = "whose weights: last (default), or best, those of the least validation loss"
    command.add_argument("--weights", default="last", choices=("last", "best"), help=what)
    what = "how the range of activations follows from those of calibration: minmax (default), percentile or entropy"
    command.add_argument("--observer", default="minmax", choices=_OBSERVERS, help=what)
    what = "training batches to calibrate with (8)"
    command.add_argument("--batches", type=_count, default=8, metavar="N", help=what)
    what = "by how much the loss may rise, relative: 0.01; layers that lose too much run in bfloat16"
    command.add_argument("--budget", type=_share, metavar="SHARE", help=what)
    what = "a layer that stays as it is, by path, with * for any one part: fc, layer1.*.conv2; may be repeated"
    command.add_argument("--skip", action="append", default=[], metavar="LAYER", help=what)
    command.add_argument("--to", type=path, metavar="DIR", help="a new or empty directory (RUN/int8)")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"needs a number from 1, got {text}")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"needs a number above 0, got {text}")
    return value


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

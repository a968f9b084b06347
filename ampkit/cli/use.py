"""`ampkit evaluate`, `predict`, `generate` and `export`: what a trained run is good for."""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import ops
from ..base.byte_sizes import bytes_in_words
from ..base.errors import ConfigError, FileError
from ..base.registry import DATASETS
from ..config import Recipe
from ..config.suggestions import is_key
from ..core.policy.delayed import without_states
from ..core.tensor import Tensor
from ..data.images.folders import images_of
from ..run.export import export as write_export
from ..run.export import export_onnx
from ..run.metrics import Scores
from ..run.trained import Trained, generates_text, load_run
from ..serialization import save
from .display import add_scores, print_line

_BATCH, _ROWS = 64, 4096  # images and rows of a forward
_INPUTS = {"images": "IMAGE", "rows": "ROWS.csv"}  # of `ampkit predict`


def _loaded(options: argparse.Namespace) -> Trained:
    return load_run(options.directory, options.weights, device=options.device)


def evaluate(options: argparse.Namespace, console: Console) -> int:
    """Print the scores of a run's model over the held-out data of its recipe, or over all of other data."""
    for path in options.inputs:
        if is_key(path.partition("=")[0]) and not Path(path).exists():
            cure = "`ampkit evaluate` takes no keys of a recipe; name other data by its path: ampkit evaluate RUN PATH"
            raise ConfigError("evaluate", "a file or a folder like that of the run", repr(path), cure)
    found = _loaded(options)
    console.print(_scores(found, found.evaluate(*options.inputs), options.inputs))
    return 0


def _scores(found: Trained, scores: Scores, inputs: Sequence[str]) -> Table:
    recipe = found.recipe
    title = f"{recipe.model.name} on {', '.join(inputs) or recipe.data.name}, {found.precision}"
    table = Table(show_header=False, title=title, title_justify="left")
    table.add_row("weights", f"of step {found.step}" + (", their moving average" if found.averaged else ""))
    add_scores(table, scores)
    return table


def hint(recipe: Recipe, directory: str) -> str:
    """What uses the model of a finished run: a command, and in Python."""
    command = ["ampkit", "evaluate", directory]
    if generates_text(recipe):
        command = ["ampkit", "generate", directory, "--prompt", "..."]
    elif (samples := DATASETS[recipe.data.name].samples) in _INPUTS and not _is_row(recipe.data):
        command = ["ampkit", "predict", directory, _INPUTS[samples]]
    return f"to use the model: {shlex.join(command)}, or ampkit.load_run({directory!r}) in Python"


def _is_row(data: Any) -> bool:
    # Numbers of columns, which are no image in a file.
    return DATASETS[data.name].samples == "images" and tuple(data.shape[:2]) == (1, 1)


def predict(options: argparse.Namespace, console: Console) -> int:
    """Print the likeliest classes of each image, with their probabilities; of tables, the predictions as CSV."""
    if options.top is not None and options.top < 1:
        raise ConfigError("--top", "a number from 1", str(options.top))
    found = _loaded(options)
    if "table" in found.about:
        if options.top is not None and not found.classes:
            raise ConfigError("--top", "a model of classes", f"one that predicts {found.table.target.name!r}, a number")
        csv.writer(sys.stdout, lineterminator="\n").writerows(_predicted_rows(found, options.inputs, options.top or 1))
        return 0
    inputs, faults = images_of(options.inputs), list[FileError]()
    for first in range(0, len(inputs), _BATCH):
        for path, row in _predicted_images(found, inputs[first : first + _BATCH], faults):
            named = ", ".join(f"{name} {share:.1%}" for name, share in _likeliest(found, row, options.top or 3))
            print_line(console, f"{path}: {named}")
    if len(faults) > 1:
        got = f"{len(faults)} of {len(inputs)} that cannot be read; the first: {str(faults[0]).splitlines()[0]}"
        raise FileError("predict", "images that can be read", got)
    if faults:
        raise faults[0]
    return 0


def _predicted_images(found: Trained, paths: Sequence[Path], faults: list[FileError]) -> list[tuple[Path, list[float]]]:
    """The images that can be read, with their probabilities; those that cannot be read are added to `faults`."""
    read, images = list[Path](), list[Tensor]()
    for path in paths:
        try:
            images.append(found.images([path]))
            read.append(path)
        except FileError as error:  # the others are not lost by it
            faults.append(error)
    return list(zip(read, found.predict(ops.cat(images)).tolist(), strict=True)) if read else []


def _likeliest(found: Trained, shares: list[float], count: int) -> list[tuple[str, float]]:
    """The names and probabilities of the `count` likeliest classes."""
    numbers = sorted(range(len(shares)), key=lambda number: -shares[number])[:count]
    return [(found.name_of(number), shares[number]) for number in numbers]


def _predicted_rows(found: Trained, paths: list[Any], top: int) -> Iterator[list[Any]]:
    """The header, and a line for each row of the tables: the number, or classes with their probabilities."""
    rows, target = found.rows(paths), found.table.target.name
    if not found.classes:
        yield [target]
    else:
        numbers = range(1, min(top, len(found.classes)) + 1)
        yield [f"{name}_{n}" if n > 1 else name for n in numbers for name in (target, "probability")]
    for first in range(0, len(rows), _ROWS):
        for row in found.predict(rows[first : first + _ROWS]).tolist():
            named = _likeliest(found, row, top) if found.classes else []
            yield [cell for name, share in named for cell in (name, f"{share:.6g}")] or [f"{row:.7g}"]


def generate(options: argparse.Namespace, console: Console) -> int:
    """Print a text and how a run's language model continues it, as it is drawn."""
    pieces = _loaded(options).text(options.prompt, options.count, options.temperature, options.top_k, options.seed)
    first = next(pieces, "")  # what cannot generate says so before the prompt
    sys.stdout.write(options.prompt + first)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def export(options: argparse.Namespace, console: Console) -> int:
    """Write a run's model as safetensors, with the recipe and a model card, or as an ONNX file."""
    to = Path(options.to or Path(options.directory) / ("model.onnx" if options.format == "onnx" else "export"))
    is_onnx = to.suffix == ".onnx"
    if options.format is not None and is_onnx != (options.format == "onnx"):
        needs = "a file *.onnx" if options.format == "onnx" else "a directory, or a file *.safetensors"
        raise ConfigError("--to", f"{needs}, for --format {options.format}", str(to))
    found = _loaded(options)
    if is_onnx:
        verified = export_onnx(found, to)
        files = [to]
    elif to.suffix == ".safetensors":
        save({name: value.detach() for name, value in without_states(found.model.state_dict()).items()}, to)
        files = [to]
    else:
        files = write_export(found, to, options.directory)
    for file in files:
        print_line(console, f"{file}  {bytes_in_words(file.stat().st_size)}")
    if is_onnx:
        print_line(console, _EQUAL if verified else _UNVERIFIED)
    return 0


_EQUAL = "ONNX Runtime's outputs on random inputs are ampkit's, within 1e-4 of the largest"
_UNVERIFIED = "not run: `pip install onnxruntime` lets this command compare its outputs with ampkit's"

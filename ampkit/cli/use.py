"""`ampkit evaluate`, `predict`, `generate` and `export`: what a trained run is good for."""

from __future__ import annotations

import argparse
import codecs
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..base.byte_sizes import bytes_in_words
from ..base.errors import ConfigError
from ..base.registry import MODELS
from ..config import Recipe
from ..run.export import export as write_export
from ..run.metrics import Scores
from ..run.trained import Trained, generates_bytes, load_run
from ..serialization import save
from .display import fractions, print_line

_BATCH = 64  # images of a forward


def _run_argument(command: argparse.ArgumentParser, path: Any) -> None:
    command.add_argument("directory", type=path, metavar="RUN", help="the directory of the run")
    what = "whose weights: last (default), or best, those of the least validation loss"
    command.add_argument("--weights", default="last", choices=("last", "best"), help=what)
    command.add_argument("--device", help="where to compute: cpu, cuda or cuda:<index>; by default as in training")


def _loaded(options: argparse.Namespace) -> Trained:
    return load_run(options.directory, options.weights, device=options.device)


def add_evaluate(command: argparse.ArgumentParser, path: Any) -> None:
    """The arguments of `ampkit evaluate`; path: the type of a path."""
    _run_argument(command, path)


def evaluate(options: argparse.Namespace, console: Console) -> int:
    """Print the scores of a run's model over the held-out data of its recipe."""
    found = _loaded(options)
    console.print(_scores(found, found.evaluate()))
    return 0


def _scores(found: Trained, scores: Scores) -> Table:
    recipe = found.recipe
    title = f"{recipe.model.name} on {recipe.data.name}, {recipe.amp.dtype}"
    table = Table(show_header=False, title=title, title_justify="left")
    table.add_row("weights", f"of step {found.step}" + (", their moving average" if found.averaged else ""))
    table.add_row("validation loss", f"{scores.val_loss:.4f} nats")
    for name, value in fractions(scores):
        table.add_row(name, f"{value:.2%}")
    return table


def hint(recipe: Recipe, directory: str) -> str:
    """What uses the model of a finished run: a command, and in Python."""
    command = ["ampkit", "evaluate", directory]
    if generates_bytes(recipe):
        command = ["ampkit", "generate", directory, "--prompt", "..."]
    elif MODELS[recipe.model.name].samples == "images":
        command = ["ampkit", "predict", directory, "IMAGE"]
    return f"to use the model: {shlex.join(command)}, or ampkit.load_run({directory!r}) in Python"


def add_predict(command: argparse.ArgumentParser, path: Any) -> None:
    """The arguments of `ampkit predict`; path: the type of a path."""
    _run_argument(command, path)
    command.add_argument("images", nargs="+", type=path, metavar="IMAGE", help="image files of the shape trained on")
    command.add_argument("--top", type=int, default=3, metavar="K", help="how many classes to print, likeliest first")


def predict(options: argparse.Namespace, console: Console) -> int:
    """Print the likeliest classes of each image, with their probabilities."""
    if options.top < 1:
        raise ConfigError("--top", "a number from 1", str(options.top))
    found = _loaded(options)
    for first in range(0, len(options.images), _BATCH):
        paths = options.images[first : first + _BATCH]
        for path, row in zip(paths, found.predict(found.images(paths)).tolist(), strict=True):
            likeliest = sorted(range(len(row)), key=lambda number: -row[number])[: options.top]
            named = ", ".join(f"{found.name_of(number)} {row[number]:.1%}" for number in likeliest)
            print_line(console, f"{path}: {named}")
    return 0


def add_generate(command: argparse.ArgumentParser, path: Any) -> None:
    """The arguments of `ampkit generate`; path: the type of a path."""
    _run_argument(command, path)
    command.add_argument("--prompt", default="", help="the text to continue; empty: a new line")
    command.add_argument("--count", type=int, default=200, metavar="N", help="bytes to generate (200)")
    command.add_argument("--temperature", type=float, default=0.8, help="0: the likeliest byte each time (0.8)")
    command.add_argument("--top-k", type=int, metavar="K", help="draw among the K likeliest bytes")
    command.add_argument("--seed", type=int, default=0, help="of the draws: the same seed gives the same text (0)")


def generate(options: argparse.Namespace, console: Console) -> int:
    """Print a text and how a run's language model continues it, as it is drawn."""
    found, prompt = _loaded(options), options.prompt.encode()
    drawn = found.generate(prompt, options.count, options.temperature, options.top_k, options.seed)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    sys.stdout.write(options.prompt)
    for byte in drawn:
        sys.stdout.write(decoder.decode(bytes([byte])))
        sys.stdout.flush()
    sys.stdout.write(decoder.decode(b"", True) + "\n")
    return 0


def add_export(command: argparse.ArgumentParser, path: Any) -> None:
    """The arguments of `ampkit export`."""
    _run_argument(command, path)
    what = "a new or empty directory (RUN/export); or a file *.safetensors, for the weights alone"
    command.add_argument("--to", type=path, metavar="DIR", help=what)


def export(options: argparse.Namespace, console: Console) -> int:
    """Write a run's model as safetensors, with the recipe and a model card."""
    found, to = _loaded(options), Path(options.to or Path(options.directory) / "export")
    if to.suffix == ".safetensors":
        save({name: value.detach() for name, value in found.model.state_dict().items()}, to)
        files = [to]
    else:
        files = write_export(found, to, options.directory)
    for file in files:
        print_line(console, f"{file}  {bytes_in_words(file.stat().st_size)}")
    return 0

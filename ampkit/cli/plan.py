"""`ampkit plan`: in which dtypes a recipe runs, and what another policy would change."""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from .. import config, debug
from ..core.policy_text import parse_policy
from ..run.loop import Run
from ..serialization import write
from .train import overrides


def add_arguments(command: argparse.ArgumentParser, path: Any) -> None:
    """The arguments of the command; path: the type of a path."""
    what = 'instead of the recipe\'s: float16, bfloat16, float32 or an expression, \'Policy("float16", softmax="low")\''
    command.add_argument("--policy", metavar="POLICY", help=what)
    command.add_argument("--diff", metavar="POLICY", help="show what this policy would run differently")
    command.add_argument("--json", type=path, metavar="FILE", help="also write the rows to a file")


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the plan of the command line; returns the exit status."""
    for text in (options.policy, options.diff):
        if text not in (None, "float32"):
            parse_policy(text)  # before the model is built
    training = Run(config.load(options.recipe, overrides(options)))
    found = _plan(training, options.policy)
    shown = str(found) if options.diff is None else found.diff(_plan(training, options.diff))
    console.print(escape(shown), soft_wrap=True)
    if options.json:
        rows = [asdict(row) for row in found.rows]
        content = {"policy": found.policy and repr(found.policy), "rows": rows, "notes": found.notes}
        write("--json", Path(options.json), (json.dumps(content, indent=2) + "\n").encode())
    return 0


def _plan(training: Run, policy: str | None) -> debug.PrecisionPlan:
    region: AbstractContextManager[Any] = training.region if policy is None else nullcontext()
    with region:
        return debug.plan(training.model, training.first_batch(), policy, training.loss_of)

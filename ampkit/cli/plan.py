"""`ampkit plan`: in which dtypes a recipe runs, and what another policy would change."""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import config, debug
from ..base.atomic_file import write
from ..debug.plan_row import PlanRow
from ..debug.plan_table import WIDTH
from ..debug.planning import parse_policy
from ..run.build import from_scratch
from ..run.loop import Run
from .display import print_line
from .train import overrides


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the plan of the command line; returns the exit status."""
    for text in (options.policy, options.diff):
        if text not in (None, "float32"):
            parse_policy(text)  # before the model is built
    training = Run(from_scratch(config.load(options.recipe, overrides(options))))
    found = _plan(training, options.policy)
    other = None if options.diff is None else _plan(training, options.diff)
    width = console.width if console.is_terminal else WIDTH
    if found.policy is None and options.policy is None:
        found.notes.append("the recipe trains in float32: --policy bfloat16 plans it in 16 bits")
    print_line(console, found.text(width) if other is None else found.diff(other, width))
    if options.json:
        content = _as_json(found)
        if other is not None:
            pairs = found.differences(other)
            content["diff"] = _as_json(other) | {"differences": [{"-": _row(a), "+": _row(b)} for a, b in pairs]}
        write("--json", Path(options.json), (json.dumps(content, indent=2) + "\n").encode())
    return 0


def _as_json(plan: debug.PrecisionPlan) -> dict[str, Any]:
    rows, backward = ([_row(row) for row in found] for found in (plan.rows, plan.backward))
    totals = {"saved": plan.total("saved"), "saved_float32": plan.saved_float32, "notes": plan.notes}
    return {"policy": plan.policy and repr(plan.policy), "rows": rows, "backward": backward, **totals}


def _row(row: PlanRow | None) -> dict[str, Any] | None:
    return None if row is None else asdict(row)


def _plan(training: Run, policy: str | None) -> debug.PrecisionPlan:
    region: AbstractContextManager[Any] = training.region if policy is None else nullcontext()
    with region:
        return debug.plan(training.model, training.first_batch(), policy, training.loss_of)

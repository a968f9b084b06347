"""What the steps of a recipe do, measured here: the precision plan, and the ledger of their time and memory."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import debug
from ..base.atomic_file import write
from ..config import Recipe, load
from ..debug.plan_table import HEAD, cells, merged
from .build import from_scratch
from .doctor import examine_cpu
from .loop import fit

MEASURED = "measured.json"


def measure(recipe: Recipe, steps: int = 1000) -> dict[str, Any]:
    """The plan and the ledger of `recipe`, as JSON, from some steps of a new run. steps: of its schedule, at least.

    plan: policy, head and rows of the table, sentences, notes, see `debug.plan`. ledger: the fields of `debug.Ledger`.
    The steps run op by op, because a recorded one shows no ops. Raises what `fit` raises.
    """
    changes = {"steps": max(steps, 1000), "epochs": None, "log_every": 1000, "eval_every": None, "compile": False}
    recipe = from_scratch(recipe)
    run = fit(recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)}))
    with run.region:
        plan = debug.plan(run.model, run.first_batch(), loss=run.loss_of)
    return {"plan": _as_json(plan), "ledger": asdict(debug.ledger(run.advance, run.optimizer))}


def _as_json(plan: debug.PrecisionPlan) -> dict[str, Any]:
    rows = [cells(row) for row in merged([*plan.rows, *plan.backward])]
    policy = "without autocast" if plan.policy is None else repr(plan.policy)
    return {"policy": policy, "head": HEAD, "rows": rows, "sentences": plan.sentences(), "notes": plan.notes}


def measure_run(directory: Path) -> None:
    """Measure the recipe of a run directory, on this machine, and write `measured.json` there.

    Raises what `config.load` and `fit` raise, and FileError for a file that cannot be written.
    """
    recipe = load(directory / "config.toml")
    cpu = next((finding.found for finding in examine_cpu() if finding.topic == "CPU"), "an unknown CPU")
    where = cpu if recipe.train.device == "cpu" else f"{recipe.train.device}, {cpu}"
    found = {"made": datetime.now().astimezone().isoformat(timespec="seconds"), "where": where, **measure(recipe)}
    write("report", directory / MEASURED, (json.dumps(found) + "\n").encode())

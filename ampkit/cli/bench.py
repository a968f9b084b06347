"""`ampkit bench`: the three precisions side by side, and in words which is faster, by how much, and why."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import config
from ..base.atomic_file import write
from ..base.errors import FileError
from ..run import doctor
from ..run.bench import Result, Started, bench, with_dtype
from ..run.metrics_log import as_json
from ..run.report import RunData, page, read_run
from ..run.report.findings import in_words, result_of
from ..run.run_dir import environment
from . import display
from .progress import ProgressMeter
from .train import overrides


def run(options: argparse.Namespace, console: Console) -> int:
    """Benchmark the recipe of the command line; returns the exit status."""
    recipe = config.load(options.recipe, overrides(options))
    for name in ("json", "report"):
        display.need_writable(f"--{name}", getattr(options, name))
    before = [] if options.against is None else [_earlier(Path(options.against), recipe, console)]
    found = list(_benchmark(recipe, console))
    results = [result for result, _ in found]
    if options.json:
        content = {"recipe": options.recipe, "overrides": options.overrides, "results": [asdict(r) for r in results]}
        write("--json", options.json, (json.dumps(content, indent=2) + "\n").encode())
    if options.report:
        write("--report", options.report, page([*before, *(run for _, run in found)]).encode())
    compared = [*map(result_of, before), *results]
    console.print(display.comparison(f"{Path(options.recipe).name}, {platform.machine()}", compared))
    compiled = recipe.train.compile and recipe.train.device != "cpu"
    unknown = "the steps for the ledger failed"
    if compared[0].ledger is None and before:
        makes = f"`ampkit report --measure {options.against}` makes it"
        unknown = f"the steps of {compared[0].dtype} have no ledger; {makes}"
    for line in in_words(compared, _units(recipe.train.device), unknown, compiled):
        display.print_line(console, line)
    failed = [result for result in results if result.error]
    for result in failed:
        display.print_error(f"{result.dtype} failed: {result.error}", 1)
    console.print(f"whole time: {sum(result.wall_seconds or 0 for result in results):.1f} s")
    return 1 if failed else 0


def _benchmark(recipe: config.Recipe, console: Console) -> Iterator[tuple[Result, RunData]]:
    """Of each precision its result, and the run for a page. On a terminal the bar is that of the first one."""
    meters: dict[str, ProgressMeter] = {}
    about: dict[str, dict[str, Any]] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        for dtype, event in bench(recipe):
            if isinstance(event, Started):
                what = (dtype, event.steps, event.per_step, event.unit)
                meters[dtype] = ProgressMeter(console, *what, every=max(1, event.steps // 10))
                if len(meters) == 1 or recipe.train.device != "cpu":
                    stack.close()
                    stack.enter_context(meters[dtype])
                about[dtype], rows[dtype] = {"ranks": 1, "per_step": event.per_step, "unit": event.unit}, []
            elif isinstance(event, Result):
                stack.close()
                made = with_dtype(recipe, dtype)
                run = RunData(dtype, config.dump(made), made.model_dump(mode="json"), measured=event.measured)
                run.environment = [environment(0, about.get(dtype, {}))]
                run.add(rows.get(dtype, []))
                yield event, run
            else:
                meters[dtype].show(event)
                rows[dtype].append(as_json(event))


def _earlier(directory: Path, recipe: config.Recipe, console: Console) -> RunData:
    """The run to compare with; prints how its recipe differs."""
    run = read_run(directory)
    if not run.steps.get("step"):
        raise FileError("--against", "the directory of a run with metrics", f"{str(directory)!r}, which has none")
    for line in (*run.notes, *_differences(run.settings, recipe.model_dump(mode="json"))):
        display.print_line(console, f"{run.name}: {line}")
    return run


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """The keys of model, data and optimizer, and the device, that differ between two recipes."""
    for section in ("model", "data", "optimizer"):
        mine, others = now[section], before.get(section, {})
        for key in dict.fromkeys((*others, *mine)):
            if others.get(key) != mine.get(key):
                yield f"its {section}.{key} is {others.get(key)!r}, here {mine.get(key)!r}"
    if (device := before.get("train", {}).get("device")) != now["train"]["device"]:
        yield f"its train.device is {device!r}, here {now['train']['device']!r}"


def _units(device: str) -> dict[str, str]:
    """By dtype, what this CPU lacks for it."""
    findings = {finding.topic: finding for finding in doctor.examine_cpu()} if device == "cpu" else {}
    units = {dtype: findings.get(f"{dtype} on the CPU") for dtype in ("bfloat16", "float16")}
    return {dtype: f"{found.found}; {found.cure}" for dtype, found in units.items() if found and found.cure}

"""`ampkit bench`: the three precisions side by side, and in words which is faster, by how much, and why."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from .. import config
from ..base.errors import FileError
from ..run import doctor
from ..run.bench import Result, Started, bench
from . import display
from .progress import ProgressMeter
from .train import overrides


def run(options: argparse.Namespace, console: Console) -> int:
    """Benchmark the recipe of the command line; returns the exit status."""
    recipe = config.load(options.recipe, overrides(options))
    if options.json:
        _need_writable(Path(options.json))
    results = _results(recipe, console)
    _write_results(options, results)
    console.print(display.comparison(f"{Path(options.recipe).name}, {platform.machine()}", results))
    compiled = recipe.train.compile and recipe.train.device != "cpu"
    for line in in_words(results, recipe.train.device, compiled):
        console.print(escape(line), soft_wrap=True)
    failed = [result for result in results if result.error]
    for result in failed:
        display.print_error(f"{result.dtype} failed: {result.error}", 1)
    console.print(f"whole time: {sum(result.wall_seconds or 0 for result in results):.1f} s")
    return 1 if failed else 0


def _results(recipe: config.Recipe, console: Console) -> list[Result]:
    results: list[Result] = []
    with ExitStack() as stack:
        for event in bench(recipe):
            if isinstance(event, Started):
                what = (event.dtype, event.steps, event.per_step, event.unit)
                meter = stack.enter_context(ProgressMeter(console, *what, every=max(1, event.steps // 10)))
            elif isinstance(event, Result):
                stack.close()
                results.append(event)
            else:
                meter.show(event)
    return results


def in_words(results: Sequence[Result], device: str, compiled: bool = False) -> Iterator[str]:
    """Each precision against the first: faster or slower, by how much, and why.

    compiled: whether the steps were recorded, which the ledger's are not.
    """
    findings = {finding.topic: finding for finding in doctor.examine_cpu()} if device == "cpu" else {}
    first = results[0]
    for result in results[1:]:
        if not result.step_seconds or not first.step_seconds:
            continue
        ratio = first.step_seconds / result.step_seconds
        yield f"{result.dtype} {_speed(ratio)} {first.dtype}"
        if result.ledger is not None and first.ledger is not None:
            later = first.ledger.seconds / result.ledger.seconds
            if not 0.8 < later / ratio < 1.25:
                yield f"  in the later steps that are explained here it {_speed(later)} {first.dtype}: times vary,"
                yield "  so take more steps (train.bench_steps), or a computer that does nothing else meanwhile"
            if compiled:
                yield "  (explained by steps without train.compile: a recorded step does not show its ops)"
            yield from (f"  {line}" for line in result.ledger.reasons(first.ledger))
        else:
            yield "  why is not known: the steps for the ledger failed"
        finding = findings.get(f"{result.dtype} on the CPU")
        if ratio < 1 and finding is not None and finding.cure:
            yield f"  this CPU: {finding.found}; {finding.cure}"


def _speed(ratio: float) -> str:
    if abs(ratio - 1) < 0.03:
        return "is as fast as"
    return (
        f"is faster: {ratio:.2f} times the speed of" if ratio > 1 else f"is slower: {1 / ratio:.2f} times the time of"
    )


def _need_writable(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise FileError("--json", "a file that can be written", f"{str(path)!r}: {error.strerror}") from None


def _write_results(options: argparse.Namespace, results: list[Result]) -> None:
    if options.json:
        content = {"recipe": options.recipe, "overrides": options.overrides, "results": [asdict(r) for r in results]}
        Path(options.json).write_text(json.dumps(content, indent=2) + "\n", "utf-8")

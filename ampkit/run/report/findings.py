"""What the numbers of runs say in words: which is faster, by how much and why, and what 16 bits lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from math import inf
from statistics import median, quantiles
from typing import Any

from ..bench import Result
from ..doctor import NO_UNITS
from ..metrics import Scores
from .run_data import RunData
from .speed import disagreement, is_sure, speed, speed_of


def findings(runs: Sequence[RunData]) -> list[str]:
    """Lines about the runs of a report; those that begin with two spaces explain the line before."""
    found = []
    for run in runs:
        if skipped := last(run.steps, "skipped"):
            steps, why = last(run.steps, "step"), "their gradients overflowed float16 at the loss scale of the moment"
            found.append(f"{run.name}: {skipped} of {steps} steps were skipped, because {why}.")
    found += _comparisons(runs)
    for run in runs:
        advice = [] if run.precision is None else run.precision["recommendations"]
        found += [f"{run.name}, what 16 bits lose:", *(f"  {line}" for line in advice)] if advice else []
    return found


def _comparisons(runs: Sequence[RunData]) -> Iterator[str]:
    """Each run against the first one in float32 of the same model and data."""
    wide: dict[str, RunData] = {}
    for run in (run for run in runs if setting(run, "amp", "dtype") == "float32"):
        wide.setdefault(_trained(run), run)
    for run in runs:
        other = wide.get(_trained(run))
        if other is not None and other is not run:
            units = run.environment[-1].get("found", {}) if run.environment else {}
            dtype = setting(run, "amp", "dtype")
            known = units.get(f"{dtype} on the CPU") if setting(run, "train", "device") == "cpu" else None
            why, compiled = {run.name: known} if known else {}, bool(setting(run, "train", "compile"))
            unknown = "`ampkit report --measure` finds out"
            said = in_words([result_of(other), result_of(run)], why, unknown, compiled)
            yield from said if dtype != "float32" else islice(said, 1)  # what explains it compares precisions


def _trained(run: RunData) -> str:
    return repr([run.settings.get(section) for section in ("model", "data")])


def setting(run: RunData, section: str, key: str) -> Any:
    """A value of a run's recipe, None if it is not known."""
    table = run.settings.get(section)
    return table.get(key) if isinstance(table, dict) else None


def last(columns: Mapping[str, Sequence[Any]], name: str) -> Any:
    """The last value of a column that is known, or None."""
    return next((value for value in reversed(columns.get(name, ())) if value is not None), None)


def result_of(run: RunData) -> Result:
    """The figures of a run as those of a benchmark, named after the run; None where they are not known."""
    marks = zip(run.steps.get("step", ()), run.steps.get("seconds", ()), strict=False)
    times = [(t - s) / (j - i) for (i, s), (j, t) in pairwise(marks) if s is not None and t is not None]
    times = [spent for spent in times if 0 < spent < inf]  # clocks are set, and files damaged
    found: dict[str, Any] = {name: last(run.steps, name) for name in ("seconds", "scale", "skipped")}
    found |= {name: last(run.evaluations, name) for name in Scores._fields}
    on_cpu = setting(run, "train", "device") in (None, "cpu")
    found["peak_bytes" if on_cpu else "device_bytes"] = last(run.steps, "memory")
    if len(times) > 1:
        first, _, third = quantiles(times, n=4, method="inclusive")
        found["quartiles"] = first, third
    return Result(run.name, step_seconds=median(times) if times else None, measured=run.measured, **found)


def in_words(
    results: Sequence[Result], units: Mapping[str, str], unknown: str, compiled: bool = False
) -> Iterator[str]:
    """Each result against the first: faster or slower, by how much, and why.

    units: by the name of a result, what its CPU has for its dtype. unknown: why there is no ledger, where there is
    none. compiled: whether the steps were recorded, which the ledger's are not.
    """
    first = results[0]
    for result in results[1:]:
        found = speed_of(result, first)
        if found is None:
            continue
        later = disagreement(result, first, found)
        if later is not None and not is_sure(result, first, found):
            yield f"{result.dtype}: no verdict, since two measurements of its speed disagree{_loss(result, first)}"
            explained = f"in the steps that are explained here it {speed(later)} {first.dtype}"
            yield f"  one step after the other it {found}, {explained}"
            yield "  take more steps (train.bench_steps), or a computer that does nothing else meanwhile"
            continue
        yield f"{result.dtype} {found}{_loss(result, first)}"
        if later is None:
            yield from _reasons(result, first, unknown, compiled)
        else:
            explained = f"in the steps that would explain it, which follow the turns, it {speed(later)} {first.dtype}"
            yield f"  why is not known: {explained}"
            yield "  other work disturbed these: take a computer that does nothing else meanwhile"
        if not found.faster and result.dtype in units:
            yield f"  its dtype on this CPU: {units[result.dtype]}"
            yield from _with_units(first) if units[result.dtype].startswith(NO_UNITS) else ()


def _with_units(first: Result) -> Iterator[str]:
    """What faster products would make of the step, by Amdahl's law from the time that they take in float32."""
    share = 0.0 if first.ledger is None else first.ledger.times.get("products", 0.0) / first.ledger.seconds
    if not 0 < share < 1:
        return
    twice, most = 1 / (1 - share / 2), 1 / (1 - share)
    twice_as_fast = "a CPU or GPU that multiplies 16 bits twice as fast"
    made = f"make the step {twice:.2f} times as fast, one that multiplies them at no cost {most:.1f} times"
    yield f"  products are {share:.0%} of the {first.dtype} step: {twice_as_fast} would {made}"


def _loss(result: Result, first: Result) -> str:
    if not first.val_loss or result.val_loss is None:
        return ""
    change = result.val_loss / first.val_loss - 1
    said = f"{abs(change):.1%} {'higher' if change > 0 else 'lower'}" if abs(change) >= 5e-4 else "the same"
    return f"; its validation loss is {said}"


def _reasons(result: Result, first: Result, unknown: str, compiled: bool) -> Iterator[str]:
    mine, wide = result.ledger, first.ledger
    if mine is None or wide is None:
        yield f"  why is not known: {unknown}"
        return
    if compiled:
        yield "  (explained by steps without train.compile: a recorded step does not show its ops)"
    yield from (f"  {line}" for line in mine.reasons(wide))

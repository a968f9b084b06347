"""Run the main job of libraries written for PyTorch on ampkit, and compare the numbers with PyTorch's.

    python -m tests.peers.libraries [--only NAME ...] [--python PYTHON] [--pytorch PYTHON] [--limit SECONDS]
                                    [--rounds N] [--report FILE.json] [--table FILE.md] [--golden] [--kept]

PYTHON: an interpreter with ampkit's dependencies and the libraries, where PyTorch need not be installed (default: this
one); one with the libraries and PyTorch, whose numbers --golden keeps in tests/golden/libraries.json. Without one,
numbers are compared with those kept, where the versions are the same; --kept: it is a failure where they are not, and
where no program can run. requirements.txt lists what CI runs so. A program of this folder whose library is not
installed is skipped. In float32, numbers agree where they differ by 1e-5 of the largest one of their name; in 16 bits
where they differ from PyTorch's 16 bits, or from its float32, by no more than these two differ, or 1e-3. Exit status 1
if a job fails or disagrees.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ALIAS = ("-m", "ampkit.as_torch")
GOLDEN = ROOT / "tests/golden/libraries.json"
TOLERANCE = 1e-5  # of float32


class Job(NamedTuple):
    """A program: its name, what it runs, its distributions, its precisions, and its tolerance in float32."""

    name: str
    runs: str
    packages: Sequence[str]
    precisions: Sequence[str]
    tolerance: float


class Outcome(NamedTuple):
    """What one run of a program gave: numbers by name, seconds, those of its timed blocks, a failure's last lines."""

    numbers: dict[str, list[float]]
    seconds: float
    error: str
    timed: float = 0.0


def jobs(only: Sequence[str]) -> list[Job]:
    """The programs of this folder, read without running them."""
    found = []
    for path in sorted(HERE.glob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
            if node.targets[0].id in ("PACKAGES", "PRECISIONS", "TOLERANCE")
        }
        if "PACKAGES" in constants and (not only or any(part in path.stem for part in only)):
            runs = (ast.get_docstring(tree) or "").split("\n")[0].rstrip(".")
            precisions = constants.get("PRECISIONS", ("float32",))
            found.append(Job(path.stem, runs, constants["PACKAGES"], precisions, constants.get("TOLERANCE", TOLERANCE)))
    return found


def run(job: Job, precision: str, start: Sequence[str], limit: int) -> Outcome:
    """Run a program in a temporary folder."""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [*start, str(HERE / f"{job.name}.py"), precision],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return Outcome({}, time.monotonic() - began, f"no end after {limit} s")
    numbers: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            _, name, *values = line.split()
            numbers.setdefault(name, []).extend(map(float, values))
    timed = sum(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("SECONDS "))
    error = "" if done.returncode == 0 and numbers else "\n".join(done.stdout.splitlines()[-8:]) or "no numbers"
    return Outcome(numbers, time.monotonic() - began, error, timed)


def versions(packages: Sequence[str], python: str) -> dict[str, str] | None:
    """The versions of the distributions there; None where one is missing."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def largest_difference(ours: Outcome, theirs: Outcome) -> float:
    """The largest difference of numbers, as a share of the largest of the same name; inf where names differ."""
    if ours.numbers.keys() != theirs.numbers.keys():
        return float("inf")
    worst = 0.0
    for name, numbers in theirs.numbers.items():
        a, b = np.array(ours.numbers[name]), np.array(numbers)
        if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        if b.size:
            worst = max(worst, float(np.nanmax(np.abs(a - b)) / max(float(np.nanmax(np.abs(b))), 1e-6)))
    return worst


def disagreement(ours: Outcome, theirs: Outcome, reference: Outcome | None) -> float:
    """How far ours are from theirs, or from `reference`, theirs in float32: to be nearer to that is no fault."""
    return min(largest_difference(ours, each) for each in (theirs, reference) if each is not None)


def compare(job: Job, options: argparse.Namespace, installed: dict[str, str]) -> list[dict[str, Any]]:
    """Run a job in each of its precisions on both sides; one row a precision."""
    rows, reference = [], None
    kept = {} if options.pytorch or not GOLDEN.exists() else json.loads(GOLDEN.read_text()).get(job.name, {})
    kept = kept if kept.get("versions") == installed else {}
    for precision in job.precisions:
        starts = [[options.python, *ALIAS], [options.pytorch]][: 2 if options.pytorch else 1]
        rounds = [[run(job, precision, start, options.limit) for start in starts] for _ in range(options.rounds)]
        ours, theirs = (*rounds[0], None)[:2]
        if precision in kept:
            theirs = Outcome(kept[precision], 0.0, "")
        difference, tolerance = None, job.tolerance
        if theirs is not None and not theirs.error:
            if precision == "float32":
                reference = theirs
            elif reference is not None:
                tolerance = max(1e-3, largest_difference(theirs, reference))
            difference = disagreement(ours, theirs, None if precision == "float32" else reference)
        good = not ours.error and (not options.kept if difference is None else difference <= tolerance)
        row = {"job": job.name, "precision": precision, "good": good, "difference": difference, "tolerance": tolerance}
        rows.append({**row, "ampkit": ours._asdict(), "pytorch": theirs and theirs._asdict()})
        shown = "-" if difference is None else f"{difference:.1e}"
        pytorch = f"{theirs.seconds:6.1f} s" if theirs and theirs.seconds else ""
        print(f"{job.name:28} {precision:9} {'works' if good else 'FAILS':6} {shown:>8}", end=" ")
        print(f"{ours.seconds:6.1f} s {pytorch}{speed(rounds)}", flush=True)
        for side, result in (("ampkit", ours), ("PyTorch", theirs)):
            if result and result.error:
                print(f"    {side}: " + result.error.replace("\n", "\n    "), flush=True)
    return rows


def speed(rounds: Sequence[Sequence[Outcome]]) -> str:
    """PyTorch's seconds of the timed blocks over ampkit's: the median of the rounds, and the least and the largest."""
    ratios = [theirs.timed / ours.timed for ours, *rest in rounds for theirs in rest if theirs.timed and ours.timed]
    if not ratios:
        return ""
    found = f"   {np.median(ratios):.2f} x PyTorch's speed"
    return found if len(ratios) == 1 else f"{found} ({min(ratios):.2f} to {max(ratios):.2f})"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/coming-from-pytorch.md: a library a line."""
    lines = ["| library | what was run | precisions | largest difference |", "|---|---|---|---|"]
    for name in dict.fromkeys(row["job"] for row in rows):
        own = [row for row in rows if row["job"] == name]
        good = [row for row in own if row["good"]]
        library = ", ".join(f"{package} {version}" for package, version in own[0]["versions"].items())
        found = [row["difference"] for row in good if row["difference"] is not None and row["precision"] == "float32"]
        shown = f"{max(found):.0e}" if found else "-"
        precisions = ", ".join(row["precision"] for row in good) or "does not work"
        lines.append(f"| {library} | {own[0]['runs']} | {precisions} | {shown} |")
    return "\n".join(lines)


def keep(rows: Sequence[dict[str, Any]]) -> None:
    """Write PyTorch's numbers, to six digits, into the golden file, in the place of those of the same jobs."""
    kept = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    for name in {row["job"] for row in rows if row["pytorch"]}:
        own = [row for row in rows if row["job"] == name]
        if all(row["good"] for row in own):
            numbers = {row["precision"]: _shortened(row["pytorch"]["numbers"]) for row in own}
            kept[name] = {"versions": own[0]["versions"], **numbers}
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept)]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _shortened(numbers: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [float(f"{value:.7g}") for value in values] for name, values in numbers.items()}


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.libraries", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="parts of names")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pytorch")
    parser.add_argument("--limit", type=int, default=300, help="seconds of one program")
    parser.add_argument("--rounds", type=int, default=1, help="runs of both, in turn, whose times are compared")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--kept", action="store_true", help="fail where no numbers of these versions are kept")
    parser.add_argument("--golden", action="store_true", help="keep PyTorch's numbers, of the jobs that agree")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the jobs, print a line each, return the exit status."""
    options = arguments(given)
    rows: list[dict[str, Any]] = []
    for job in jobs(options.only):
        installed = versions(job.packages, options.python)
        if installed is None:
            print(f"{job.name:28} skipped: needs {', '.join(job.packages)}")
            continue
        own = [{**row, "versions": installed, "runs": job.runs} for row in compare(job, options, installed)]
        rows += own
        if options.golden:
            keep(own)
    names = {row["job"] for row in rows}
    failed = {row["job"] for row in rows if not row["good"]}
    print(f"{len(names) - len(failed)} of {len(names)} libraries work")
    if options.report:
        options.report.write_text(json.dumps(rows, indent=1))
    if options.table:
        options.table.write_text(table(rows) + "\n")
    return int(bool(failed) or (options.kept and not names))


if __name__ == "__main__":
    sys.exit(main())

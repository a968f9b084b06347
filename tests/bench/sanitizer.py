"""Run the tests of kernels under compute-sanitizer, for `first_run.py`: memcheck, racecheck and synccheck.

Every array is allocated from the driver, not from a pool, so that memcheck sees its bounds. Outcomes of tests are
ignored, except that of one that ends its process: some tests count pool allocations or rely on timing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requirements
import suite

TOOLS = ("memcheck", "racecheck", "synccheck")
PATIENCE = 300  # seconds per test, which runs many times slower here
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
# Lines that report no error: the header, and messages about a process that failed or used no GPU.
_NOTHING = re.compile(r"$|COMPUTE-SANITIZER|Error: process didn't|The application may have|Error: Target application")


def check(run: Any, until: float, tests: Callable[..., Any]) -> Any:
    """Run the tools and return the state of the part. tests: a function that runs a queue and returns its state."""
    import first_run

    command = requirements.sanitizer()
    if not command and run.device == "cuda":
        cure = "install CUDA's toolkit or nvidia-cuda-sanitizer-api"
        return first_run.State(True, "nothing", [f"no compute-sanitizer on the path: {cure}"])
    done, said, failed = True, [], []
    for i, tool in enumerate(TOOLS):
        queue = _queue(run, tool, command)
        share = (until - time.monotonic()) / (len(TOOLS) - i)
        state = tests(queue, run, time.monotonic() + share)
        done, said = done and state.done, [*said, f"{tool} {state.said}"]
        ended = [queue.name(path) for path in queue.paths if command and queue.done(path)]
        lines = [*found(queue.folder), *unchecked(queue.folder, ended), *_ended(state.failed)]
        failed += [f"{tool} {line}" for line in lines]
    return first_run.State(done, "; ".join(said), failed)


def _queue(run: Any, tool: str, command: list[str]) -> suite.Queue:
    paths = [path for path in suite.kernels() if not run.only or any(part in path.name for part in run.only)]
    paths = [path for path in paths if path.name == "test_dropout.py"] if run.tiny else paths
    if not paths:
        raise SystemExit(f"sanitize: no test file of kernels matches {' '.join(run.only) or 'test_dropout.py'}")
    folder = run.out / "sanitize" / tool

    def prefix(name: str) -> list[str]:
        log = folder / "found" / f"{name}.%p.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        return [*command, "--tool", tool, "--report-api-errors", "no", "--log-file", str(log)] if command else []

    return suite.Queue(folder, paths, ["--device", run.device, "--no-pool"], run.jobs, PATIENCE, prefix)


def _ended(failed: list[str]) -> list[str]:
    return [line for line in failed if re.search(r"ended its process|no output for|before a test", line)]


def unchecked(folder: Path, names: list[str]) -> Iterator[str]:
    """A line per test file, of those that have ended, in whose logs the tool says nothing of errors: it did not run."""
    for name in names:
        logs = [log.read_text("utf-8", "replace") for log in (folder / "found").glob(f"{name}.*.txt")]
        if not any(_SUMMARY.search(log) for log in logs):
            last = next((line for log in logs for line in reversed(log.splitlines())), "no log")
            yield f"{name}: the tool did not check it: {last}"


def found(folder: Path) -> Iterator[str]:
    """A line per log with errors: how many, the first one, and its kernel."""
    for log in sorted((folder / "found").glob("*.txt")):
        lines = [line.lstrip("= ").strip() for line in log.read_text("utf-8", "replace").splitlines()]
        errors = [line for line in lines if not (_SUMMARY.search(line) or _NOTHING.match(line))]
        count = sum(int(match[1]) for line in lines if (match := _SUMMARY.search(line)))
        if count or errors:
            where = next((line for line in errors if line.startswith("at ") or " in kernel " in line), "")
            said = f"{errors[0] if errors else ''} {where}".strip()
            yield f"{log.name.partition('.')[0]}: {count or 'some'} errors: {said}"

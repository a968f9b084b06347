"""Run test files in separate, parallel, resumable processes; for `first_run.py`.

Each test file has a file of outcomes (see resumable.py) and a log. A test that crashes its process or hangs for
`patience` seconds fails alone: the process is restarted with the tests after it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import resumable
from processes import HERE, ROOT, environment, kill, start

ENDED = (0, 1, 5)  # exit statuses of pytest: passed, some failed, none were left
SHOWN = 6  # failures listed per file
# Prefixes of the files that run first: those that need a GPU. HOST_ONLY run last: they need none.
FIRST = ("kernels/cuda/", "backends/cuda/", "backends/test_references_on_device", "core/test_capture",
         "backends/test_cuda", "amp/", "ops/", "optim/", "nn/", "models/", "core/", "kernels/", "backends/",
         "autograd/")  # fmt: skip
HOST_ONLY = ("cuda/test_compiles", "cuda/test_emulator", "api/", "fuzz/", "data/", "cli/")


def files(only: Sequence[str] = ()) -> list[Path]:
    """The test files, or those with one of `only` in their name; those of kernels first."""
    found = [p for p in sorted((ROOT / "tests").rglob("test_*.py")) if not only or any(part in p.name for part in only)]
    return sorted(found, key=_place)


def kernels() -> list[Path]:
    """The files that test CUDA kernels and NVIDIA's libraries."""
    return [p for p in files() if _place(p) < 3]


def _place(path: Path) -> int:
    name = path.relative_to(ROOT / "tests").as_posix()
    if any(part in name for part in HOST_ONLY):
        return len(FIRST) + 1
    return next((i for i, start in enumerate(FIRST) if name.startswith(start)), len(FIRST))


class Running(NamedTuple):
    path: Path
    process: subprocess.Popen[Any]
    known: int  # outcomes when it started


class Queue:
    """Runs pytest on each of `paths` with `options`; prefix(name): the command line to run it under."""

    def __init__(self, folder: Path, paths: list[Path], options: list[str], jobs: int = 1, patience: float = 120,
                 prefix: Any = None):  # fmt: skip
        self.folder, self.paths, self.options, self.jobs = folder, paths, options, jobs
        self.patience, self.prefix = patience, prefix or (lambda name: [])
        (folder / "outcomes").mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)

    @staticmethod
    def name(path: Path) -> str:
        """The name of a test file's outcomes and logs."""
        return "-".join(path.relative_to(ROOT / "tests").with_suffix("").parts)

    def outcomes(self, path: Path) -> Path:
        return self.folder / "outcomes" / f"{self.name(path)}.jsonl"

    def log(self, path: Path) -> Path:
        return self.folder / "logs" / f"{self.name(path)}.log"

    def done(self, path: Path) -> bool:
        """Whether all tests of a file have run."""
        return resumable.read(self.outcomes(path))[0].get("end") is not None

    def run(self, until: float) -> bool:
        """Run what is left until `until` (time.monotonic()); return whether all files are done."""
        waiting = [path for path in self.paths if not self.done(path)]
        running: list[Running] = []
        try:
            while (waiting or running) and time.monotonic() < until:
                while waiting and len(running) < self.jobs:
                    running.append(self._start(waiting.pop(0)))
                time.sleep(0.05)
                for each in [r for r in running if self._over(r)]:
                    running.remove(each)
                    if not self.done(each.path):
                        waiting.insert(0, each.path)
        finally:
            for each in running:
                kill(each.process)
        return not waiting and not running

    def _start(self, path: Path) -> Running:
        file = self.outcomes(path)
        file.touch()
        command = [*self.prefix(self.name(path)), sys.executable, "-m", "pytest", str(path), "-q", "--tb=short", "-p",
                   "bench.resumable", "-p", "no:cacheprovider", "--outcomes", str(file), *self.options]  # fmt: skip
        # Without this folder in PYTHONPATH: its modules have the names of test packages.
        settings = environment(HERE.parent, OMP_NUM_THREADS="1")
        with self.log(path).open("a") as log:
            process = start(command, stdout=log, stderr=log, cwd=ROOT, env=settings)
        return Running(path, process, len(resumable.read(file)[0]))

    def _over(self, running: Running) -> bool:
        # Whether a process has ended or hung; if so, adds the outcomes that it did not write itself.
        file, code = self.outcomes(running.path), running.process.poll()
        if code is None:
            if time.time() - max(file.stat().st_mtime, self.log(running.path).stat().st_mtime) < self.patience:
                return False
            kill(running.process)
        outcomes, begun = resumable.read(file)
        if code in ENDED:
            resumable.add(file, test="end", outcome="passed", said="")
        elif begun is not None:
            said = f"no output for {self.patience:.0f} s" if code is None else f"ended its process ({code})"
            resumable.add(file, test=begun, outcome="failed", said=said)
        elif len(outcomes) == running.known:  # no test ran: a restart would do the same
            said = f"pytest ended with {code} before a test: see {self.log(running.path).name}"
            resumable.add(file, test="end", outcome="failed", said=said)
        return True

    def counts(self) -> dict[str, int]:
        """How many tests passed, failed and were skipped."""
        found = {"passed": 0, "failed": 0, "skipped": 0}
        for path in self.paths:
            for test, row in resumable.read(self.outcomes(path))[0].items():
                found[row["outcome"]] += test != "end" or row["outcome"] == "failed"
        return found

    def failures(self) -> list[str]:
        """A line per failure; for a file with many, the first SHOWN and the number of the others."""
        return [line for path in self.paths for line in _first(path.name, self._failures(path))]

    def _failures(self, path: Path) -> list[str]:
        found, _ = resumable.read(self.outcomes(path))
        failed = {test: row["said"] for test, row in found.items() if row["outcome"] == "failed"}
        return [f"{path.name if test == 'end' else test}: {said}" for test, said in failed.items()]

    def forget_failures(self) -> None:
        """Remove failed outcomes, so that these tests run again."""
        for path in self.paths:
            rows, _ = resumable.read(self.outcomes(path))
            if any(row["outcome"] == "failed" for row in rows.values()):
                self.outcomes(path).write_text("")
                for test, row in rows.items():
                    if row["outcome"] != "failed" and test != "end":
                        resumable.add(self.outcomes(path), **row)


def _first(name: str, lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"{name}: and {more} more"]

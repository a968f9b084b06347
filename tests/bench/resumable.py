"""A pytest plugin that writes each test's outcome to a file at once and skips the tests that the file already has.

    pytest -p bench.resumable --outcomes FILE [--no-pool]

FILE gets a line of JSON when a test begins and one with its outcome. A test after which the GPU no longer works, as
after an illegal address, ends the process with status BROKEN: all later tests would fail too. --no-pool allocates every
array from the driver, not from a pool, so that compute-sanitizer detects out-of-bounds accesses.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

BROKEN = 77


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path)
    parser.addoption("--no-pool", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--no-pool") and config.getoption("--device") == "cuda":
        importlib.import_module("cupy").cuda.set_allocator(None)
    if config.getoption("--outcomes"):
        config.pluginmanager.register(Outcomes(config.getoption("--outcomes")))


def read(file: Path) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Return (outcomes by test, the test that began but has no outcome)."""
    found: dict[str, dict[str, Any]] = {}
    begun = None
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        row = json.loads(line)
        if "begun" in row:
            begun = row["begun"]
        elif found.get(row["test"], {}).get("outcome") != "failed":
            found[row["test"]] = row
    return found, begun if begun is not None and begun not in found else None


def add(file: Path, **row: Any) -> None:
    """Append a line to a file of outcomes."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")


class Outcomes:
    """Writes outcomes to `file` and deselects the tests that it already has."""

    def __init__(self, file: Path):
        self.file, self.failed = file, False

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        known, _ = read(self.file)
        done = [item for item in items if item.nodeid in known]
        items[:] = [item for item in items if item.nodeid not in known]
        config.hook.pytest_deselected(items=done)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.failed = False
        add(self.file, begun=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = True
            self._write(report, "failed", _said(report))
        elif report.when == "call" or report.skipped:
            self._write(report, report.outcome, "")

    def _write(self, report: pytest.TestReport, outcome: str, said: str) -> None:
        add(self.file, test=report.nodeid, outcome=outcome, seconds=round(report.duration, 3), said=said)

    def pytest_runtest_logfinish(self) -> None:
        if self.failed and _broken():
            sys.stdout.flush()
            os._exit(BROKEN)


def _said(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    said = crash.message if crash else str(report.longrepr)
    return (said.strip().splitlines() or [""])[0][:300]


def _broken() -> bool:
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return False
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except Exception:  # of any kind: the context is unusable
        return True
    return False

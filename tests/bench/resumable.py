"""A plugin of pytest: each outcome is written as soon as it is there, and what a file of outcomes has is not run again.

    pytest -p bench.resumable --outcomes FILE [--no-pool]

FILE gets a line of JSON as a test begins, and one with its outcome. A test after which the GPU answers nothing more,
as after an illegal address, ends the process with status BROKEN: all tests after it would fail as well. --no-pool gives
every array memory of its own from the driver, so that a checker of memory sees where it ends.
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
    """(outcomes by test, the test that began and has none)."""
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
    """Add a line to a file of outcomes."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")


class Outcomes:
    """Writes outcomes to `file`, and leaves out the tests that it has."""

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
    except Exception:  # of any kind: nobody can go on
        return True
    return False

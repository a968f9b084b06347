"""Processes with a time limit: what they print comes line by line, and they end with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Process:
    """A process of this Python. timed_out: whether it was ended at its limit; error: the end of what it said."""

    def __init__(self, arguments: Sequence[str | Path], limit: float, log: Path | None = None):
        self.arguments, self.limit, self.log = arguments, limit, log
        self.timed_out, self.error, self.code = False, "", 0

    def lines(self) -> Iterator[str]:
        """What it writes to its output, as it comes, until it ends."""
        end = time.monotonic() + self.limit
        # A file and no pipe: what the process leaves running could hold a pipe open.
        with tempfile.NamedTemporaryFile("w+") as out, self._errors() as errors, open(out.name) as written:  # noqa: PTH123
            started = start([sys.executable, *map(str, self.arguments)], stdout=out, stderr=errors, env=environment())
            try:
                rest, running = "", True
                while running and not self.timed_out:
                    running = started.poll() is None
                    *lines, rest = (rest + written.read()).split("\n")
                    yield from (line + "\n" for line in lines)
                    time.sleep(0.02 if running else 0)
                    self.timed_out = running and time.monotonic() > end
                self.code = started.returncode or 0
            finally:
                kill(started)
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 2000))
            self.error = errors.read().strip()

    def _errors(self) -> Any:
        return tempfile.TemporaryFile("w+") if self.log is None else self.log.open("a+")


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """A process that leads a group of its own, in this session: it ends with the session."""
    return subprocess.Popen(command, process_group=0, **options)


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process and its group: what handles SIGTERM has three seconds to end what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)


def end_children_when_terminated() -> None:
    """Let SIGTERM raise SystemExit, so that what is under way is cleaned up."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def environment(folder: Path = HERE, **more: str) -> dict[str, str]:
    """The environment of a process that imports ampkit, the tests' modules, and those of `folder`."""
    places = [ROOT, HERE.parent, folder, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in places if str(p)), **more}

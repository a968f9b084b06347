"""Processes with a time limit: what they print comes line by line, and they end with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Process:
    """A process of this Python. timed_out: whether it was killed at its limit; error: the end of what it said."""

    def __init__(self, arguments: Sequence[str | Path], limit: float, log: Path | None = None):
        self.arguments, self.limit, self.log = arguments, limit, log
        self.timed_out, self.error, self.code = False, "", 0

    def lines(self) -> Iterator[str]:
        """What it writes to its output, as it comes, until it ends."""
        with tempfile.TemporaryFile("w+") if self.log is None else self.log.open("a+") as errors:
            started = subprocess.Popen([sys.executable, *map(str, self.arguments)], stdout=subprocess.PIPE,
                                       stderr=errors, text=True, env=environment(), start_new_session=True)  # fmt: skip
            assert started.stdout is not None
            timer = threading.Timer(self.limit, self._stop, [started])
            timer.start()
            try:
                yield from started.stdout
                self.code = started.wait()
            finally:
                timer.cancel()
                kill(started)
                started.stdout.close()
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 2000))
            self.error = errors.read().strip()

    def _stop(self, started: Any) -> None:
        self.timed_out = True
        kill(started)


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a session, and all that it started there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that imports ampkit and the tests' modules from this folder."""
    places = [ROOT, ROOT / "tests", ROOT / "tests" / "bench", os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in places if str(p)), **more}

"""Child processes: with a time limit, read line by line, ended with their own children; or answering requests."""

from __future__ import annotations

import json
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
    """A Python process. timed_out: whether it was killed at its time limit; error: the end of its stderr."""

    def __init__(self, arguments: Sequence[str | Path], limit: float, log: Path | None = None):
        self.arguments, self.limit, self.log = arguments, limit, log
        self.timed_out, self.error, self.code = False, "", 0

    def lines(self) -> Iterator[str]:
        """Run the process and yield the lines of its stdout as they come."""
        end = time.monotonic() + self.limit
        # A file, not a pipe: a grandchild left running could hold a pipe open.
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


class Worker:
    """A process that answers each line of JSON on its stdin by one on its stdout, until its stdin is closed."""

    def __init__(self, arguments: Sequence[object]):
        self.process = start(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def ask(self, request: Any) -> Any:
        """The answer to a request; EOFError if the process ended instead."""
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise EOFError(f"a process ended early, with status {self.process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=3)
        kill(self.process)
        self.process.stdout.close()


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process as leader of its own process group."""
    return subprocess.Popen(command, process_group=0, **options)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process group: SIGTERM, and after three seconds SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)


def end_children_when_terminated() -> None:
    """Let SIGTERM raise SystemExit, so that `finally` blocks kill the children."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def environment(folder: Path = HERE, **more: str) -> dict[str, str]:
    """Environment variables for a process that imports ampkit, modules of tests/ and modules of `folder`."""
    places = [ROOT, HERE.parent, folder, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in places if str(p)), **more}

"""A fuzzer of the public API: random calls, each of which has to return or to raise an error that says what was wrong.

    python -m tests.fuzz.api --calls 1000000 --seed 0 --jobs 2
    python -m tests.fuzz.api --only conv2d --calls 20000
    python -m tests.fuzz.api --call "ops.celu(t(2, 3), alpha=0)"        # one call again, with its traceback

A result that wants a gradient gets a backward pass. A call is fine if it returns, raises an AmpkitError, or a TypeError
of Python's about the names and the number of its arguments. All else is a finding: another exception, a warning, an
error of NumPy's or Python's in the words of an AmpkitError, a call of more than LIMIT seconds, an end of the process.
Each finding is one line that reproduces it. Calls run in processes of limited memory; one that ends is started again
behind the call that ended it.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import mmap
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import ampkit
from ampkit import AmpkitError, Tensor

from .calls import SPACE, generate, targets

LIMIT = 5.0  # seconds for a call
MEMORY = 2 << 30  # bytes of address space
_OF_PYTHON = re.compile(
    r"[\w.<>]+\(\) (missing|takes|got an unexpected|got multiple|got some|argument after)|.*missing the argument"
)
_ROOT = str(Path(ampkit.__file__).parent)
_NAME = "tests.fuzz.api"  # as it is started


class Hang(BaseException):
    """A call that ran out of time."""


def text_of(seed: int, number: int, paths: tuple[str, ...]) -> str:
    """The source of a call: the same for the same seed, number and paths."""
    rng = Random(f"{seed}:{number}")
    return generate(rng, rng.choice(paths))


def _tensors(item: Any, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, (list, tuple)) and depth < 3:
        for one in item:
            yield from _tensors(one, depth + 1)


def run(text: str) -> None:
    """Run one call, and the backward pass of what it returns."""
    found = eval(text, dict(SPACE))
    for out in list(_tensors(found))[:3]:
        if out.requires_grad and out.is_floating_point():
            (out.float() * 1.0).sum().backward()
            break


def _kind(error: BaseException) -> str | None:
    # What is wrong with this outcome, or None.
    if isinstance(error, AmpkitError):
        return "dressed" if "Python says" in str(error) else None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(_ROOT)]
    if (
        isinstance(error, TypeError)
        and (len(frames) <= 2 or ".forward()" in str(error) or frames[-1].name == "_need")
        and _OF_PYTHON.match(str(error))
    ):
        return None
    if isinstance(error, (KeyError, IndexError)) and frames and "dataset[" in str(frames[-1].line):
        return None  # of the caller's own dataset
    if isinstance(error, TypeError) and any(frame.name == "factor_of" for frame in frames):
        return None  # of the caller's own function
    if isinstance(error, TypeError) and not frames:  # of the expression itself: None + 1
        return None
    return "warning" if isinstance(error, Warning) else "hang" if isinstance(error, Hang) else "raw"


def judged(text: str) -> dict[str, str] | None:
    """The finding that a call is, or None."""
    state = ampkit.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            signal.setitimer(signal.ITIMER_REAL, LIMIT)
            try:
                run(text)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        kind = _kind(error)
        if kind is None:
            return None
        cause = error.__cause__ if kind == "dressed" and error.__cause__ is not None else error
        frames = traceback.extract_tb(cause.__traceback__)
        inside = [f for f in frames if f.filename.startswith(_ROOT)] or frames
        where = f"{Path(inside[-1].filename).name}:{inside[-1].lineno}"
        first = (str(error).splitlines() or [""])[-1 if kind == "dressed" else 0][:120]
        return {"kind": kind, "error": type(error).__name__, "where": where, "says": first, "call": text}
    finally:
        ampkit.set_grad_enabled(True)
        ampkit.set_default_device("cpu")
        ampkit.set_float32_matmul_precision("highest")
        ampkit.use_deterministic_algorithms(True)
        ampkit.set_rng_state(state)
    return None


def overdue(*_: Any) -> None:
    """The handler of SIGALRM."""
    raise Hang("no answer in time")


def work(seed: int, start: int, stop: int, step: int, paths: tuple[str, ...], progress: str) -> None:
    """In a process of its own: run the calls start, start + step, ..., and print the findings as lines of JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    signal.signal(signal.SIGALRM, overdue)
    with Path(progress).open("r+b") as file:
        place = mmap.mmap(file.fileno(), 8)
    out, sys.stdout = sys.stdout, io.StringIO()  # some calls print
    for number in range(start, stop, step):
        place[:] = number.to_bytes(8, "little")
        finding = judged(text_of(seed, number, paths))
        if finding is not None:
            print(json.dumps(finding), file=out, flush=True)
    place[:] = stop.to_bytes(8, "little")


class Worker:
    """A process that runs every `step`-th call, watched and started again."""

    def __init__(self, options: argparse.Namespace, folder: Path, start: int, stop: int, step: int):
        self.options, self.start, self.stop, self.step = options, start, stop, step
        self.progress, self.out = folder / f"{start}.at", folder / f"{start}.out"
        self.read = 0  # characters of `out`
        self.begin(start)

    def begin(self, start: int) -> None:
        """Start a process at a call."""
        self.at, self.since = start, time.monotonic()
        self.progress.write_bytes(start.to_bytes(8, "little"))
        numbers = ["--worker", *map(str, (start, self.stop, self.step)), "--seed", str(self.options.seed)]
        only = ["--only", self.options.only] if self.options.only else []
        command = [sys.executable, "-m", _NAME, *numbers, "--progress", str(self.progress), *only]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=environment)

    def number(self) -> int:
        """The call that it is at."""
        return int.from_bytes(self.progress.read_bytes(), "little")

    def look(self) -> Iterator[dict[str, str]]:
        """The findings since the last look; a process that ended or stays at one call is one."""
        *lines, _ = self.out.read_text()[self.read :].split("\n")
        self.read += sum(len(line) + 1 for line in lines)
        yield from map(json.loads, lines)
        now, ended = self.number(), self.process.poll()
        if now != self.at:
            self.at, self.since = now, time.monotonic()
        stuck = time.monotonic() - self.since > 4 * LIMIT
        if now >= self.stop or (ended is None and not stuck):
            return
        if stuck:
            self.process.kill()
            self.process.wait()
        text = text_of(self.options.seed, now, chosen(self.options.only))
        yield {"kind": "hang" if stuck else "crash", "error": str(ended), "where": "", "says": "", "call": text}
        if now + self.step < self.stop:
            self.begin(now + self.step)
        else:
            self.at = self.stop

    def done(self) -> bool:
        """Whether all its calls have run."""
        return (self.number() >= self.stop or self.at >= self.stop) and self.process.poll() is not None


def chosen(only: str | None) -> tuple[str, ...]:
    """The paths that hold `only`, by its whole last name where there is one."""
    if only is None:
        return targets()
    exact = tuple(path for path in targets() if path.rpartition(".")[2] == only or path == only)
    return exact or tuple(path for path in targets() if only in path)


def main() -> int:
    """Run the calls, print the findings and what kinds there were. -> 1 if there were any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only")
    parser.add_argument("--call")
    parser.add_argument("--worker", nargs=3, type=int)
    parser.add_argument("--progress")
    parser.add_argument("--json", help="a file for all findings, one a line")
    options = parser.parse_args()
    if options.call:
        warnings.simplefilter("error")
        run(options.call)
        return 0
    if options.worker:
        work(options.seed, *options.worker, chosen(options.only), options.progress)
        return 0
    return watch(options)


def watch(options: argparse.Namespace) -> int:
    """Run the workers until all calls have run."""
    began, counts, seen = time.monotonic(), Counter[str](), set()
    with tempfile.TemporaryDirectory() as folder:
        workers = [Worker(options, Path(folder), job, options.calls, options.jobs) for job in range(options.jobs)]
        finished = False
        while not finished:
            time.sleep(0.05)
            finished = all(worker.done() for worker in workers)
            for finding in [f for worker in workers for f in worker.look()]:
                counts[finding["kind"]] += 1
                report(finding, options.json, seen)
    seconds = time.monotonic() - began
    rate = f"{options.calls} calls in {seconds:.0f} s, {options.calls / seconds:.0f} a second"
    print(f"{rate}; {dict(counts) or 'no findings'}")
    return int(bool(counts))


def report(finding: dict[str, str], log: str | None, seen: set[Any]) -> None:
    """Print a finding, the first of its kind and place alone; all of them go to the file `log`."""
    if log:
        with Path(log).open("a") as file:
            print(json.dumps(finding), file=file)
    key = (finding["where"], finding["error"], "" if finding["where"] else finding["call"])
    if key not in seen:
        seen.add(key)
        line = " ".join(finding[name] for name in ("kind", "error", "where", "says"))
        print(f"{line}\n    {finding['call']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

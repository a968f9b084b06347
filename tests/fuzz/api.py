"""A fuzzer of the public API: every random call must return or raise a clear error.

    python -m tests.fuzz.api --calls 400000 --seed 1 2 3 --jobs 2       # so many calls of each seed
    python -m tests.fuzz.api --only conv2d --calls 20000
    python -m tests.fuzz.api --call "ops.celu(t(2, 3), alpha=0)"        # repeat one call, with its traceback

A result that requires grad gets a backward pass. A call passes if it returns, or raises an AmpkitError or Python's own
TypeError about the names and number of arguments. Everything else is a finding: another exception, a warning, an
AmpkitError that merely wraps NumPy's or Python's error, a call that exceeds LIMIT seconds, a crash of the process. Each
finding is printed with the call that reproduces it. Calls run in processes with limited memory; after a crash a new
process continues with the next call.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import mmap
import os
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
from ampkit import Tensor

from .calls import SPACE, generate, targets
from .objects import differentiate
from .verdict import Hang, frames_inside, kind

LIMIT = 5.0  # seconds of the CPU for a call, so that a busy machine makes no hangs
AS_PYTORCH_WARNS = (
    " without dim takes", "needs optimizer.step\\(\\) before", "comes twice, and counts once", "nothing to initialize",
)  # fmt: skip
STUCK = 60.0  # seconds after which a process that begins no other call is ended
MEMORY = 2 << 30  # bytes of address space
REFUSED = "refused"  # the kind of a proper error, which is no fault
_NAME = "tests.fuzz.api"  # for python -m


def source_of(seed: int, number: int, paths: tuple[str, ...]) -> str:
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
    """Evaluate a call, and the backward pass of its result."""
    found = eval(text, dict(SPACE))
    for out in list(_tensors(found))[:3]:
        if differentiate(out):
            break


def check(text: str) -> dict[str, str] | None:
    """Run a call; return the finding, of kind "refused" for a proper error, or None if it returned."""
    state = ampkit.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for said in AS_PYTORCH_WARNS:
                warnings.filterwarnings("ignore", f".*{said}")
            signal.setitimer(signal.ITIMER_PROF, LIMIT)
            try:
                run(text)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        found = kind(error)
        if found is None:
            return {"kind": REFUSED}
        cause = error.__cause__ if found == "wrapped" and error.__cause__ is not None else error
        frame = (frames_inside(cause) or traceback.extract_tb(cause.__traceback__))[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        first = (str(error).splitlines() or [""])[-1 if found == "wrapped" else 0][:120]
        return {"kind": found, "error": type(error).__name__, "where": where, "says": first, "call": text}
    finally:
        ampkit.autograd.set_detect_anomaly(False)
        ampkit.set_grad_enabled(True)
        ampkit.set_default_device("cpu")
        ampkit.set_default_dtype(ampkit.float32)
        ampkit.set_float32_matmul_precision("highest")
        ampkit.use_deterministic_algorithms(True)
        ampkit.set_rng_state(state)
    return None


def on_alarm(*_: Any) -> None:
    """The handler of SIGPROF."""
    raise Hang("time limit exceeded")


def work(seed: int, start: int, stop: int, step: int, paths: tuple[str, ...], progress: str, memory: int) -> None:
    """In a child process: run calls start, start + step, ... and print findings as lines of JSON."""
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    faulthandler.enable()
    signal.signal(signal.SIGPROF, on_alarm)
    with Path(progress).open("r+b") as file:
        place = mmap.mmap(file.fileno(), 8)
    out, sys.stdout = sys.stdout, io.StringIO()  # some calls print
    refused = 0
    for number in range(start, stop, step):
        place[:] = number.to_bytes(8, "little")
        finding = check(source_of(seed, number, paths))
        if finding is not None and finding["kind"] == REFUSED:
            refused += 1
        elif finding is not None:
            print(json.dumps(finding), file=out, flush=True)
    print(json.dumps({"kind": REFUSED, "count": refused}), file=out, flush=True)
    place[:] = stop.to_bytes(8, "little")


class Worker:
    """A supervised child process that runs every `step`-th call, restarted after a crash or hang."""

    def __init__(self, options: argparse.Namespace, seed: int, folder: Path, start: int):
        self.options, self.seed, self.stop, self.step = options, seed, options.calls, options.jobs
        self.progress, self.out = folder / f"{start}.at", folder / f"{start}.out"
        self.read = 0  # characters of `out`
        self.begin(start)

    def begin(self, start: int) -> None:
        """Start a process at call number `start`."""
        self.at, self.since = start, time.monotonic()
        self.progress.write_bytes(start.to_bytes(8, "little"))
        numbers = ["--worker", *map(str, (start, self.stop, self.step)), "--seed", str(self.seed)]
        numbers += ["--memory", str(self.options.memory)]
        only = ["--only", self.options.only] if self.options.only else []
        command = [sys.executable, "-m", _NAME, *numbers, "--progress", str(self.progress), *only]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=environment)

    def number(self) -> int:
        """The number of the current call."""
        return int.from_bytes(self.progress.read_bytes(), "little")

    def poll(self) -> Iterator[dict[str, Any]]:
        """The findings since the last poll; a crash or hang of the process is one."""
        *lines, _ = self.out.read_text()[self.read :].split("\n")
        self.read += sum(len(line) + 1 for line in lines)
        yield from map(json.loads, lines)
        now, ended = self.number(), self.process.poll()
        if now != self.at:
            self.at, self.since = now, time.monotonic()
        stuck = time.monotonic() - self.since > STUCK
        if now >= self.stop or (ended is None and not stuck):
            return
        if stuck:
            self.process.kill()
            self.process.wait()
        text = source_of(self.seed, now, selected(self.options.only))
        yield {"kind": "hang" if stuck else "crash", "error": str(ended), "where": "", "says": "", "call": text}
        if now + self.step < self.stop:
            self.begin(now + self.step)
        else:
            self.at = self.stop

    def done(self) -> bool:
        """Whether all its calls have run."""
        return (self.number() >= self.stop or self.at >= self.stop) and self.process.poll() is not None


def selected(only: str | None) -> tuple[str, ...]:
    """The paths whose last part is `only`; if there is none, those that contain it."""
    if only is None:
        return targets()
    exact = tuple(path for path in targets() if path.rpartition(".")[2] == only or path == only)
    return exact or tuple(path for path in targets() if only in path)


def main() -> int:
    """Run the calls, print findings and their counts; return 1 if there are any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only")
    parser.add_argument("--call")
    parser.add_argument("--worker", nargs=3, type=int)
    parser.add_argument("--memory", type=int, default=MEMORY, help="bytes of a process's address space; 0: no limit")
    parser.add_argument("--progress")
    parser.add_argument("--json", help="a file for all findings, one a line")
    options = parser.parse_args()
    if options.call:
        warnings.simplefilter("error")
        run(options.call)
        return 0
    if options.worker:
        work(options.seed[0], *options.worker, selected(options.only), options.progress, options.memory)
        return 0
    print(f"{len(selected(options.only))} functions")
    return max(watch(options, seed) for seed in options.seed)


def watch(options: argparse.Namespace, seed: int) -> int:
    """Supervise the workers until all calls of a seed have run."""
    began, counts, refused, seen = time.monotonic(), Counter[str](), 0, set()
    with tempfile.TemporaryDirectory() as folder:
        workers = [Worker(options, seed, Path(folder), job) for job in range(options.jobs)]
        finished = False
        while not finished:
            time.sleep(0.05)
            finished = all(worker.done() for worker in workers)
            for finding in [f for worker in workers for f in worker.poll()]:
                if finding["kind"] == REFUSED:
                    refused += finding["count"]
                    continue
                counts[finding["kind"]] += 1
                report(finding, options.json, seen)
    seconds = time.monotonic() - began
    rate = f"seed {seed}: {options.calls} calls in {seconds:.0f} s, {options.calls / seconds:.0f} a second"
    print(f"{rate}; {refused} refused; {counts.total()} findings {dict(counts) or ''}")
    return int(bool(counts))


def report(finding: dict[str, str], log: str | None, seen: set[Any]) -> None:
    """Print a finding if it is the first of its kind and place; append every finding to the file `log`."""
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

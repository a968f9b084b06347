"""Interrupt a training run at random, resume it, and compare the result with an uninterrupted run.

    python tests/bench/interrupted_runs.py [--endings 100] [--kinds kill,term,hup,int,disk,twice] [--steps 60] [K=V]
    python tests/bench/interrupted_runs.py --kinds rank --ranks 2 --endings 50

Trains recipes/text_gpt.toml in float16 with dropout and accumulated gradients, once uninterrupted; then once per
interruption, and resumes. Metrics, weights, moments, loss scale, random state and data position are compared bit for
bit, and missing or duplicated rows are counted. The kinds of interruption, in turn:

    kill             SIGKILL at a random moment, including process start
    term, hup, int   SIGTERM, SIGHUP or SIGINT likewise; the status must be 128 + the signal, and no step may be lost
    disk             from a random moment on, files cannot grow beyond a random size (RLIMIT_FSIZE); one line, status 1
    twice            two processes start at once in one directory; one must be refused, with status 2
    rank             SIGKILL to a random one of --ranks ranks under `ampkit launch`, which must end with status 0

Exits with status 1 if a result differs or a message is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ampkit import Tensor
from ampkit.run.checkpoint import Checkpoints

RECIPE = Path(__file__).parents[2] / "recipes" / "text_gpt.toml"
SETTING = ["amp.dtype=float16", "amp.growth_interval=20", "model.dropout=0.1", "train.accumulate=2", "model.n_layer=2"]
SETTING += ["train.checkpoint_every=7", "train.log_every=1", "train.eval_every=20", "train.eval_batches=4"]
SETTING += ["schedule.warmup=5", "train.threads=1", "model.n_embd=64", "model.block_size=64"]


class Ended(NamedTuple):
    """How a process ended: where, and what it did wrong, "" if nothing."""

    where: str
    fault: str = ""


def command(directory: Path, overrides: list[str], ranks: int = 1) -> list[str]:
    """The command that starts the run in `directory`, or resumes it."""
    launcher = ["launch", "-n", str(ranks), "--max-restarts", "3"] if ranks > 1 else []
    line = [sys.executable, "-m", "ampkit", *launcher, "train", str(RECIPE), *SETTING, *overrides]
    return [*line, "--resume", "--run-dir", str(directory)]


def start(directory: Path, overrides: list[str], ranks: int = 1) -> subprocess.Popen[str]:
    # A shell's background job ignores SIGINT, and its child processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(directory, overrides, ranks), **pipes)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The complete rows of a run's metrics, without times."""
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return [json.loads(line) | {"seconds": 0, "memory": 0} for line in lines]


def result(directory: Path) -> Any:
    """The metrics and the last checkpoint of a run, without times, in comparable form."""
    last = Checkpoints(directory / "checkpoints").last()
    assert last is not None
    return comparable([rows_of(directory), last.state | {"counts": last.state["counts"] | {"seconds": 0}}])


def comparable(value: Any) -> Any:
    """Replace tensors by (dtype, shape, bytes)."""
    if isinstance(value, Tensor):
        return value.dtype.name, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return [comparable(item) for item in value] if isinstance(value, (list, tuple)) else value


def wait(process: subprocess.Popen[str], directory: Path, at: float) -> None:
    """Wait until `at` seconds after the first row, or, if `at` is negative, -at seconds after the start."""
    while at >= 0 and process.poll() is None and not rows_of(directory):
        time.sleep(0.005)
    time.sleep(abs(at))


def interrupt(number: int, directory: Path, overrides: list[str], at: float, draw: random.Random) -> Ended:
    process = start(directory, overrides)
    wait(process, directory, at)
    if process.poll() is None:
        process.send_signal(number)
    said = process.stderr.read()
    status, rows = process.wait(), len(rows_of(directory))
    where = "finished before the signal" if status == 0 else f"interrupted after {rows} rows"
    if status == 0 or number == signal.SIGKILL:
        return Ended(where)
    # During Python's own startup and shutdown the signal's default action ends the process at once.
    outside = status == -number and (not rows or finished(directory, overrides))
    fault = "" if status == 128 + number or outside else f"status {status}: {said}"
    return Ended(where, fault or lost_steps(directory))


def finished(directory: Path, overrides: list[str]) -> bool:
    """Whether the run in a directory has taken all its steps."""
    last = Checkpoints(directory / "checkpoints").last()
    return last is not None and f"train.steps={last.step}" in overrides


def lost_steps(directory: Path) -> str:
    """A message if the last checkpoint is not that of the last row, else ""."""
    rows, last = rows_of(directory), Checkpoints(directory / "checkpoints").last()
    done = max([row["step"] for row in rows], default=0)
    return "" if done == (last.step if last else 0) else f"{done} steps, but a checkpoint of {last and last.step}"


def on_full_disk(directory: Path, overrides: list[str], at: float, draw: random.Random) -> Ended:
    process, metrics = start(directory, overrides), directory / "metrics.jsonl"
    wait(process, directory, at)
    size = metrics.stat().st_size if metrics.exists() else 0
    limit = draw.choice([size + draw.randrange(200), draw.randrange(1, 1_000_000)])
    if process.poll() is None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    said, status = process.stderr.read(), process.wait()
    where = f"no file beyond {limit} bytes, after {len(rows_of(directory))} rows"
    clear = status == 0 or (status in (1, 2) and said.startswith("ampkit: ") and said.count("\n") <= 3)
    return Ended(where if status else "finished before the disk was full", "" if clear else f"status {status}: {said}")


def twice(directory: Path, overrides: list[str], at: float, draw: random.Random) -> Ended:
    both = [start(directory, overrides) for _ in range(2)]
    said = [process.stderr.read() for process in both]
    found = sorted((process.wait(), text) for process, text in zip(both, said, strict=True))
    names = any(f"got process {process.pid} on {os.uname().nodename}" in found[1][1] for process in both)
    fault = "" if [status for status, _ in found] == [0, 2] and names else f"two processes: {found}"
    return Ended("two processes at once", fault)


def kill_rank(ranks: int, directory: Path, overrides: list[str], at: float, draw: random.Random) -> Ended:
    process = start(directory, overrides, ranks)
    wait(process, directory, at)
    running = ranks_below(process.pid)
    if process.poll() is None and running:
        os.kill(victim := draw.choice(running), signal.SIGKILL)
        where = f"rank {running.index(victim)} of {len(running)} killed after {len(rows_of(directory))} rows"
    else:
        where = "no rank runs yet" if process.poll() is None else "finished before the kill"
    said, status = process.stderr.read(), process.wait()
    return Ended(where, "" if status == 0 else f"status {status}: {said}")


def ranks_below(pid: int) -> list[int]:
    """The processes that the launcher started by process `pid` has started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(folder.name))
    found, below = list[int](), [pid]
    while below:
        found += [each for each in below if not children.get(each)]
        below = [child for each in below for child in children.get(each, [])]
    return sorted(each for each in found if each != pid and "train" in command_line(each))


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:  # it has ended
        return []


KINDS: dict[str, Callable[[Path, list[str], float, random.Random], Ended]] = {
    "kill": partial(interrupt, signal.SIGKILL),
    "term": partial(interrupt, signal.SIGTERM),
    "hup": partial(interrupt, signal.SIGHUP),
    "int": partial(interrupt, signal.SIGINT),
    "disk": on_full_disk,
    "twice": twice,
}


def differences(found: list[Any], wanted: list[Any]) -> Counter[str]:
    """How many rows are missing, and how many are duplicated."""
    have, want = (Counter(map(json.dumps, rows)) for rows in (found, wanted))
    return Counter(lost=(want - have).total(), duplicated=(have - want).total())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endings", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    ways = KINDS | {"rank": partial(kill_rank, options.ranks)}
    overrides, draw = [f"train.steps={options.steps}", *options.overrides], random.Random(options.seed)
    equal, faults, rows = Counter[str](), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        begin = time.perf_counter()
        subprocess.run(command(whole, overrides, options.ranks), check=True, stdout=subprocess.DEVNULL)
        wall, expected = time.perf_counter() - begin, result(whole)
        seconds = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-2])["seconds"]
        for number in range(options.endings):
            kind, run = kinds[number % len(kinds)], Path(folder) / f"run{number}"
            early = draw.random() < 0.2
            at = -draw.uniform(0, wall - seconds) if early else draw.uniform(0, 0.8 * seconds)
            ended = ways[kind](run, overrides, at, draw)
            subprocess.run(command(run, overrides, options.ranks), check=True, stdout=subprocess.DEVNULL)
            found = result(run)
            same = found == expected and not ended.fault
            equal[kind] += same
            faults += bool(ended.fault)
            rows += differences(found[0], expected[0])
            print(f"{number + 1}: {kind}: {ended.where}, {'equal' if same else 'DIFFERENT'} {ended.fault}", flush=True)
    print(", ".join(f"{kind} {equal[kind]}" for kind in kinds))
    print(f"{equal.total()} of {options.endings} results equal; {rows['lost']} rows lost, {rows['duplicated']} twice")
    return 0 if equal.total() == options.endings else 1


if __name__ == "__main__":
    sys.exit(main())

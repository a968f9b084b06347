"""A run that is ended, again and again, and resumed: does it end like the one that never was?

    python tests/bench/kills.py [--endings 100] [--kinds kill,term,hup,int,disk,twice] [--steps 60] [key=value ...]

Trains recipes/text_gpt.toml in float16 with dropout and accumulated gradients, once without being stopped; then anew
for each ending, and resumes what that left. Metrics, weights, moments, scale, random stream and cursor of the two are
compared bit for bit, and rows that are missing or doubled are counted. The kinds of endings, in turn:

    kill             SIGKILL at a random moment, the start of the process included
    term, hup, int   SIGTERM, SIGHUP or Ctrl-C likewise; the status must be 128 + the signal, and no step may be lost
    disk             from a random moment on files cannot grow beyond a random size (RLIMIT_FSIZE); one line, status 1
    twice            two processes begin at once in one directory; one must be refused, with status 2

Ends with status 1 if an ending differs or says something else.
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
    """How a process ended: where, and a word for what it should not have done, "" if nothing."""

    where: str
    fault: str = ""


def command(directory: Path, overrides: list[str]) -> list[str]:
    """A run in `directory`, or its continuation."""
    line = [sys.executable, "-m", "ampkit", "train", str(RECIPE), *SETTING, *overrides]
    return [*line, "--resume", "--run-dir", str(directory)]


def started(directory: Path, overrides: list[str]) -> subprocess.Popen[str]:
    # A shell that puts this campaign in the background has it ignore Ctrl-C, and its children too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(directory, overrides), **pipes)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """The rows of a run, less the clock; whole lines alone."""
    metrics = directory / "metrics.jsonl"
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return [json.loads(line) | {"seconds": 0} for line in lines]


def ending(directory: Path) -> Any:
    """All that a run has left, less the clock."""
    last = Checkpoints(directory / "checkpoints").last()
    assert last is not None
    return plain([rows_of(directory), last.state | {"counts": last.state["counts"] | {"seconds": 0}}])


def plain(value: Any) -> Any:
    """With bytes in the place of tensors."""
    if isinstance(value, Tensor):
        return value.dtype.name, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def wait(process: subprocess.Popen[str], directory: Path, at: float) -> None:
    """Until `at` seconds after the first row; -at seconds after the start where that is negative."""
    while at >= 0 and process.poll() is None and not rows_of(directory):
        time.sleep(0.005)
    time.sleep(abs(at))


def signalled(number: int, directory: Path, overrides: list[str], at: float, draw: random.Random) -> Ended:
    process = started(directory, overrides)
    wait(process, directory, at)
    if process.poll() is None:
        process.send_signal(number)
    said = process.stderr.read()
    status, rows = process.wait(), len(rows_of(directory))
    where = "over before it was ended" if status == 0 else f"ended behind {rows} rows"
    if status == 0 or number == signal.SIGKILL:
        return Ended(where)
    # Python's own start and end, outside of the run, leave a signal to the system, which ends the process at once.
    outside = status == -number and (not rows or is_over(directory, overrides))
    fault = "" if status == 128 + number or outside else f"status {status}: {said}"
    return Ended(where, fault or lost_steps(directory))


def is_over(directory: Path, overrides: list[str]) -> bool:
    """Whether the run in a directory has made all its steps."""
    last = Checkpoints(directory / "checkpoints").last()
    return last is not None and f"train.steps={last.step}" in overrides


def lost_steps(directory: Path) -> str:
    """A word for rows without a checkpoint behind the last of them."""
    rows, last = rows_of(directory), Checkpoints(directory / "checkpoints").last()
    done = max([row["step"] for row in rows], default=0)
    return "" if done == (last.step if last else 0) else f"{done} steps, but a checkpoint of {last and last.step}"


def on_full_disk(directory: Path, overrides: list[str], at: float, draw: random.Random) -> Ended:
    process, metrics = started(directory, overrides), directory / "metrics.jsonl"
    wait(process, directory, at)
    size = metrics.stat().st_size if metrics.exists() else 0
    limit = draw.choice([size + draw.randrange(200), draw.randrange(1, 1_000_000)])
    if process.poll() is None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    said, status = process.stderr.read(), process.wait()
    where = f"no file beyond {limit} bytes, behind {len(rows_of(directory))} rows"
    clear = status == 0 or (status in (1, 2) and said.startswith("ampkit: ") and said.count("\n") <= 3)
    return Ended(where if status else "over before the disk was full", "" if clear else f"status {status}: {said}")


def twice(directory: Path, overrides: list[str], at: float, draw: random.Random) -> Ended:
    both = [started(directory, overrides) for _ in range(2)]
    said = [process.stderr.read() for process in both]
    found = sorted((process.wait(), text) for process, text in zip(both, said, strict=True))
    names = any(f"got process {process.pid} on {os.uname().nodename}" in found[1][1] for process in both)
    fault = "" if [status for status, _ in found] == [0, 2] and names else f"two processes: {found}"
    return Ended("two processes at once", fault)


KINDS: dict[str, Callable[[Path, list[str], float, random.Random], Ended]] = {
    "kill": partial(signalled, signal.SIGKILL),
    "term": partial(signalled, signal.SIGTERM),
    "hup": partial(signalled, signal.SIGHUP),
    "int": partial(signalled, signal.SIGINT),
    "disk": on_full_disk,
    "twice": twice,
}


def differences(found: list[Any], wanted: list[Any]) -> Counter[str]:
    """How many rows are missing, and how many are there more often than they should."""
    have, want = (Counter(map(json.dumps, rows)) for rows in (found, wanted))
    return Counter(lost=(want - have).total(), doubled=(have - want).total())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endings", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    overrides, draw = [f"train.steps={options.steps}", *options.overrides], random.Random(options.seed)
    equal, faults, rows = Counter[str](), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        begin = time.perf_counter()
        subprocess.run(command(whole, overrides), check=True, stdout=subprocess.DEVNULL)
        wall, expected = time.perf_counter() - begin, ending(whole)
        seconds = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-2])["seconds"]
        for number in range(options.endings):
            kind, run = kinds[number % len(kinds)], Path(folder) / f"run{number}"
            early = draw.random() < 0.2
            at = -draw.uniform(0, wall - seconds) if early else draw.uniform(0, 0.8 * seconds)
            ended = KINDS[kind](run, overrides, at, draw)
            subprocess.run(command(run, overrides), check=True, stdout=subprocess.DEVNULL)
            found = ending(run)
            same = found == expected and not ended.fault
            equal[kind] += same
            faults += bool(ended.fault)
            rows += differences(found[0], expected[0])
            print(f"{number + 1}: {kind}: {ended.where}, {'equal' if same else 'DIFFERENT'} {ended.fault}", flush=True)
    print(", ".join(f"{kind} {equal[kind]}" for kind in kinds))
    print(f"{equal.total()} of {options.endings} endings equal; rows lost {rows['lost']}, doubled {rows['doubled']}")
    return 0 if equal.total() == options.endings else 1


if __name__ == "__main__":
    sys.exit(main())

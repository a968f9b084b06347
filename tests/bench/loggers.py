"""What each logger costs at a row a step, as a share of a step of text_gpt.

    python -m tests.bench.loggers [--seconds 20] [--only csv tensorboard]

First the median CPU time of a step on one thread. Then, in a process for each logger, rows come as often as steps
would, while nothing else runs: the CPU time of that process (the logger's threads) and of those it started (W&B's
service), from the first row on, is the logger's. "main thread" is the part that delays the step: handing the row over.
W&B runs offline; MLflow, trackio and the files are local. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ampkit import config
from ampkit.run.loggers import LOGGERS, SECONDS, Loggers, Start
from ampkit.run.loop import StepRow, fit

from .processes import Process

RECIPE = "recipes/text_gpt.toml"
LENGTH = ["train.threads=1", "train.log_every=100000", "train.eval_every=", "train.epochs=", "train.steps=100000"]
WARMUP, STEPS = 4, 40


def step_seconds() -> float:
    """Median CPU seconds of a training step on one thread."""
    run, times = fit(config.load(RECIPE, LENGTH)), []
    for _ in range(WARMUP + STEPS):
        start = time.process_time()
        run.advance()
        times.append(time.process_time() - start)
    return statistics.median(times[WARMUP:])


def row_seconds(name: str, between: float, seconds: float) -> tuple[float, float]:
    """CPU seconds of a row, in all and in the main thread, at a row every `between` seconds."""
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"WANDB_MODE": "offline", "TRACKIO_DIR": folder}
        start = Start(Path(folder), config.load(RECIPE).model_dump(mode="json"), 0)
        with Loggers([name], start, failed.append) as loggers:
            rows, main = 0, 0.0
            time.sleep(2)  # what its start leaves behind, threads' work and garbage: a collection of it takes 80 ms
            gc.collect()
            before, end = cpu_seconds(), time.monotonic() + seconds
            while time.monotonic() < end:
                began, rows = time.thread_time(), rows + 1
                loggers.write(StepRow(rows, 2.5, 1e-3, 1.0, 0, 1.0, rows * between))
                main += time.thread_time() - began
                time.sleep(between)
            time.sleep(SECONDS + 1)  # until the last of them is written
            others = cpu_seconds() - before
    if failed:
        raise SystemExit(failed[0])
    return (main + others) / rows, main / rows


def cpu_seconds() -> float:
    """CPU seconds of this process's other threads, and of the processes it started that still run."""
    tasks = [task for child in started("self") for task in Path(f"/proc/{child}/task").iterdir()]
    nanoseconds = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return time.process_time() - time.thread_time() + nanoseconds * 1e-9


def started(process: str) -> Iterator[str]:
    """The numbers of the processes that a process started, and of those that they started."""
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield child
            yield from started(child)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20, help="of rows for each logger")
    parser.add_argument("--only", nargs="+", default=list(LOGGERS), choices=LOGGERS)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)  # a logger, and seconds between its rows
    given = parser.parse_args()
    if given.row:
        print(json.dumps(row_seconds(given.row[0], float(given.row[1]), given.seconds)))
        return
    step = step_seconds()
    print(f"{RECIPE}: {step * 1e3:.1f} ms of CPU time a step\n")
    print("| logger | us a row | of them in the main thread | share of a step |\n|---|---|---|---|")
    for name in given.only:
        arguments = ["-m", "tests.bench.loggers", "--row", name, step, "--seconds", given.seconds]
        process = Process(arguments, 120 + given.seconds)
        answers = [line for line in process.lines() if line.startswith("[")]  # clients print lines of their own
        whole, main = json.loads(answers[-1]) if answers else sys.exit(process.error)
        print(f"| {name} | {whole * 1e6:.0f} | {main * 1e6:.0f} | {whole / step:.2%} |", flush=True)


if __name__ == "__main__":
    main()

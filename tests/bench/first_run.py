"""Validate ampkit on a new GPU, in resumable parts that write their results as they go.

    python -m tests.bench.first_run check            list what is installed and what is missing; needs nothing installed
    python -m tests.bench.first_run all              all parts, for --minutes 9.5; repeat until nothing is left
    python -m tests.bench.first_run suite steps      some parts

environment: `ampkit doctor` and nvidia-smi. properties: the device properties, as cuDNN's planner takes them. steps:
training steps of each model, eager and recorded, compared with the CPU's. suite: all tests with --device cuda, those of
kernels first. bench: `python -m tests.bench.gpu`. sanitize: the tests of kernels under compute-sanitizer. Nothing is
downloaded. Results go to --out: failures to summary.txt, one line each, and all logs to first_run.tar.gz. --again
repeats what failed, --only selects tests or models whose names contain one of these words.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE)]

import requirements  # noqa: E402
from processes import Process, end_children_when_terminated  # noqa: E402

UNLIMITED = 1e9  # seconds
STEP_LIMIT = 180
_PROPERTIES = """
import cudnn
made = cudnn.create_device_properties(0).serialize()
print(made if isinstance(made, str) else bytes(made).decode())
"""


class Run(NamedTuple):
    """Options: the output folder, the device, parallel jobs, and which tests or models."""

    out: Path
    device: str = "cuda"
    tiny: bool = False
    jobs: int = 1
    only: tuple[str, ...] = ()
    again: bool = False


class State(NamedTuple):
    """A part's state: whether it is complete, a line of progress, and a line per failure."""

    done: bool
    said: str
    failed: list[str]


def environment(run: Run, until: float) -> State:
    """Write environment.txt: the output of `ampkit doctor` and nvidia-smi; kept from an earlier run unless --again."""
    if (run.out / "environment.txt").exists() and not run.again:
        return State(True, "environment.txt, of an earlier run", [])
    doctor = Process(["-m", "ampkit", "doctor"], _left(until, 120))
    text = "".join(doctor.lines()) + doctor.error + "\n" + requirements.output(["nvidia-smi"])
    if doctor.code:
        return State(True, "nothing", [f"ampkit doctor: {_end(doctor)}", text])
    (run.out / "environment.txt").write_text(text, "utf-8")
    return State(True, "environment.txt", [])


def properties(run: Run, until: float) -> State:
    """Write properties.json: the device properties, in the format of tests/cuda_on_cpu/h100.json; kept like those."""
    if (run.out / "properties.json").exists() and not run.again:
        return State(True, "properties.json, of an earlier run", [])
    process = Process(["-c", _PROPERTIES], _left(until, 60))
    text = "".join(process.lines())
    if process.code or process.timed_out:
        return State(True, "none", [_end(process)])
    (run.out / "properties.json").write_text(text, "utf-8")
    return State(True, "properties.json", [])


def steps(run: Run, until: float) -> State:
    """Write steps.json and steps.md: a row per model and precision (see device_steps.py)."""
    import device_steps

    models = ["mlp"] if run.tiny else list(device_steps.MODELS)
    wanted = [f"{m} {d}" for d in device_steps.DTYPES for m in models if not run.only or any(o in m for o in run.only)]
    file = run.out / "steps.json"
    rows: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    rows = {name: row for name, row in rows.items() if not (run.again and row["wrong"])}

    def measure(name: str) -> None:
        if time.monotonic() < until - 5:
            row = _step(name, run.device, until)
            if row is not None:
                rows[name] = row
                file.write_text(json.dumps(dict(rows), indent=1) + "\n", "utf-8")
                (run.out / "steps.md").write_text(device_steps.table(dict(rows)), "utf-8")

    with ThreadPoolExecutor(run.jobs) as pool:
        list(pool.map(measure, [name for name in wanted if name not in rows]))
    failed = [f"{name}: {said}" for name in wanted if name in rows for said in rows[name]["wrong"]]
    there = [name for name in wanted if name in rows]
    return State(len(there) == len(wanted), f"{len(there)} of {len(wanted)} models and precisions", failed)


def _step(name: str, device: str, until: float) -> dict[str, Any] | None:
    # None if the time ran out first.
    process = Process([HERE / "device_steps.py", *name.split(), "--device", device], _left(until, STEP_LIMIT))
    lines = list(process.lines())
    if process.timed_out and process.limit < STEP_LIMIT:
        return None
    if process.code or process.timed_out:
        return {"wrong": [_end(process)]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def suite(run: Run, until: float) -> State:
    """Write suite/: outcomes and a log per test file."""
    import suite as queues

    only = run.only or (("test_grad_scaler.py",) if run.tiny else ())
    queue = queues.Queue(run.out / "suite", queues.files(only), ["--device", run.device], run.jobs)
    return _tests(queue, run, until)


def _tests(queue: Any, run: Run, until: float) -> State:
    if run.again:
        queue.forget_failures()
    done = queue.run(until)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in queue.counts().items())
    ended = sum(queue.done(path) for path in queue.paths)
    return State(done, f"{ended} of {len(queue.paths)} files: {counts}", queue.failures())


def bench(run: Run, until: float) -> State:
    """Write bench/: gpu.json and gpu.md."""
    minutes = (until - time.monotonic()) / 60
    options = ["--device", run.device, *(["--tiny", "--only", "mlp"] if run.tiny else [])]
    command = ["-m", "tests.bench.gpu", "--out", run.out / "bench", "--minutes", f"{minutes:.2f}", *options]
    process = Process(command, 60 * minutes + 30, run.out / "bench.log")
    print("".join(line for line in process.lines() if " s left: " in line), end="")
    file = run.out / "bench" / "gpu.json"
    if process.code or not file.exists():
        return State(process.code != 0, "nothing", [_end(process)])
    return _measured(json.loads(file.read_text("utf-8")))


def _measured(found: dict[str, Any]) -> State:
    rows = [(f"{work} {name}", row) for work, variants in found["steps"].items() for name, row in variants.items()]
    rows += [(name, row) for section in ("kernels", "products") for name, row in found[section].items()]
    wrong = {name: row["error"] for name, row in rows if "error" in row}
    late = [name for name, error in wrong.items() if error == "no time left"]
    failed = [f"{name}: {error.splitlines()[-1]}" for name, error in wrong.items() if name not in late]
    return State(not late, f"{len(rows) - len(wrong)} of {len(rows)} rows: bench/gpu.md", failed)


def sanitize(run: Run, until: float) -> State:
    """Write sanitize/: the logs of compute-sanitizer per tool and test file."""
    import sanitizer

    return sanitizer.check(run, until, _tests)


class Part(NamedTuple):
    run: Callable[[Run, float], State]
    minutes: float  # of a turn, when several parts run


PARTS = {
    "environment": Part(environment, 1),
    "properties": Part(properties, 1),
    "steps": Part(steps, 2),
    "suite": Part(suite, 3),
    "bench": Part(bench, 5),
    "sanitize": Part(sanitize, 3),
}


def _left(until: float, most: float = UNLIMITED) -> float:
    return max(1.0, min(until - time.monotonic(), most))


def _end(process: Process) -> str:
    if process.timed_out:
        return f"took longer than {process.limit:.0f} s"
    return (process.error.splitlines() or [f"ended with status {process.code}"])[-1]


def turns(run: Run, names: list[str], until: float) -> dict[str, State]:
    """Run the parts in turn, each for its minutes, and repeat the incomplete ones, until `until`."""
    states, waiting = {}, list(names)
    while waiting and time.monotonic() < until - 5:
        name = waiting.pop(0)
        alone = not waiting
        turn = _left(until) if alone else min(_left(until), 60 * PARTS[name].minutes)
        print(f"{_left(until):4.0f} s left: {name}, for {turn:.0f} s", flush=True)
        states[name] = PARTS[name].run(run, time.monotonic() + turn)
        print(f"  {states[name].said}", flush=True)
        waiting += [] if states[name].done else [name]
        run = run._replace(again=run.again and name in waiting and name not in states)
        summarize(run.out, states)
    return states


def summarize(out: Path, states: dict[str, State]) -> str:
    """Write and return summary.txt: the states of this run's parts and, for the others, of earlier runs."""
    file = out / "summary.json"
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    known |= {name: state._asdict() for name, state in states.items()}
    file.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    lines = [f"{name}: {'done' if s['done'] else 'not done'}, {s['said']}" for name, s in known.items()]
    lines += [f"{name} never ran" for name in PARTS if name not in known]
    lines += [f"FAILED {name}: {line}" for name, state in known.items() for line in state["failed"]]
    text = "\n".join(lines) + "\n"
    (out / "summary.txt").write_text(text, "utf-8")
    return text


def pack(out: Path) -> None:
    """Pack the folder into first_run.tar.gz, inside it."""
    with tarfile.open(out / "first_run.tar.gz", "w:gz") as packed:
        for path in sorted(out.rglob("*")):
            if path.is_file() and path.name != "first_run.tar.gz":
                packed.add(path, path.relative_to(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=["check", "all", *PARTS], metavar="PART")
    parser.add_argument("--out", type=Path, default=Path("runs/first_run"))
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--jobs", type=int, default=max(1, min(15, (os.cpu_count() or 1) // 2)))
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulated"))
    parser.add_argument("--tiny", action="store_true", help="run a small portion of each part")
    args = parser.parse_args()
    end_children_when_terminated()
    until = time.monotonic() + 60 * args.minutes
    if "check" in args.parts:
        print("\n".join(requirements.check(args.device)))
    names = list(PARTS) if "all" in args.parts else [name for name in PARTS if name in args.parts]
    if names:
        args.out = args.out.resolve()
        args.out.mkdir(parents=True, exist_ok=True)
        turns(Run(args.out, args.device, args.tiny, args.jobs, tuple(args.only), args.again), names, until)
        print(summarize(args.out, {}), end="")
        pack(args.out)


if __name__ == "__main__":
    main()

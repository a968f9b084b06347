"""Compare ampkit with PyTorch on one GPU: whole training steps, kernels (against memory bandwidth) and products.

    python -m tests.bench.gpu [--only gpt2 resnet50 mlp nano kernels] [--minutes 8.5] [--out FOLDER] [--fresh]

Each row is written to FOLDER/gpu.json and gpu.md as soon as it is measured, and the same command resumes with the
missing rows: the most important first, ampkit's before those that PyTorch compiles for minutes, then failed ones, then
further rounds of the fastest. Each has a time limit. Rows measured on another card, driver, library version or day are
moved to another file, and all are measured anew; --fresh does the same.

Each variant of a step runs in its own process (`gpu_steps.py`), so that its peak memory is its own; kernels and
products alternate with PyTorch's in one process (`gpu_kernels.py`). Without PyTorch its rows say so.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE)]

import gpu_facts  # noqa: E402
import gpu_kernels  # noqa: E402
import gpu_table  # noqa: E402
from gpu_steps import WORK  # noqa: E402
from processes import Process, end_children_when_terminated  # noqa: E402

Results = dict[str, Any]
LEAST = 15  # seconds: with less time left, no row is started
NO_TIME = "no time left"
TOO_LONG = "took longer than"
ROW = 60  # seconds for a kernel or product; longer counts as a hang
ROUNDS = 3
LARGE, SMALL = ("gpt2", "resnet50"), ("mlp", "nano")


class Task(NamedTuple):
    """A row to measure, or all kernels: section, name, time limit in seconds, round."""

    section: str
    name: str
    limit: float
    round: int = 1


def plan(only: list[str], tiny: bool = False, variants: Sequence[str] = ()) -> list[Task]:
    """The rows of the first round, the most important first; tiny: without slow compilations. variants: these alone."""
    tasks = [Task(work, f"ampkit mixed{way}", 100) for work in WORK for way in (" compiled", "")]
    tasks += [Task(work, "torch mixed", 60) for work in WORK]
    tasks += [Task("kernels", "", 150)]
    tasks += [Task(work, f"torch mixed {way}", 150) for work in LARGE for way in ("compile", "reduce-overhead")]
    ways = {"reduce-overhead": 120, "graph": 60, "compile": 120, "compile graph": 120}
    tasks += [Task(work, f"torch mixed {way}", limit) for work in SMALL for way, limit in ways.items()]
    tasks += [Task(work, f"ampkit {kind} compiled", 100) for work in LARGE for kind in ("float32", "tf32")]
    tasks += [Task(work, f"torch {kind} compile", 150) for work in LARGE for kind in ("float32", "tf32")]
    tasks += [Task(work, "torch mixed max-autotune", 420) for work in WORK]
    quick = [task for task in tasks if not tiny or task.name in ("", "torch mixed") or task.name.startswith("ampkit")]
    known = [task for task in quick if task.section in only]
    return [task for name in variants for task in known if task.name == name] if variants else known


def ordered(results: Results, only: list[str], variants: Sequence[str] = ()) -> list[Task]:
    """The tasks of the first round that are not done: missing rows, then failed ones."""
    states = [(state(results, task), task) for task in plan(only, results["tiny"], variants)]
    return [task for wanted in ("missing", "failed") for found, task in states if found == wanted]


def state(results: Results, task: Task) -> str:
    """The state of a task: "measured", or "failed" or "missing" if one of its rows is."""
    if task.section != "kernels":
        return _state(results["steps"].get(task.section, {}).get(task.name))
    found = {_state(results.get(section, {}).get(name)) for section, name in gpu_kernels.names(results["tiny"])}
    return next(each for each in ("missing", "failed", "measured") if each in found)


def _state(row: Any) -> str:
    if row is None or row.get("error") == NO_TIME:
        return "missing"
    if row.get("error", "").startswith(TOO_LONG):
        return "measured"  # counts as done: it would exceed its time limit again
    return "failed" if "error" in row else "measured"


def again(results: Results, only: list[str], number: int) -> list[Task]:
    """Round `number` of the rows that the main ratio compares: ampkit's compiled step and PyTorch's fastest."""
    found = []
    for work in (w for w in WORK if w in only):
        rows = {name: row for name, row in results["steps"].get(work, {}).items() if "blocks" in row}
        theirs = [name for name in gpu_table.FASTEST if name in rows]
        best = min(theirs, key=lambda name: statistics.median(rows[name]["blocks"]), default=None)
        pair = [name for name in ("ampkit mixed compiled", best) if name in rows and best]
        found += [Task(work, name, 150, number) for name in pair if rows[name]["rounds"] < number]
    return found


class Bench:
    """Measures rows until `until` and writes the results to `folder` after each."""

    def __init__(self, results: Results, folder: Path, until: float, device: str = "cuda"):
        self.results, self.folder, self.until = results, folder, until
        self.options = ["--device", device, *(["--tiny"] if results["tiny"] else [])]

    def run(self, only: list[str], variants: Sequence[str] = ()) -> None:
        for task in ordered(self.results, only, variants):
            self.measure(task)
        for number in range(2, 1 if self.results["tiny"] else ROUNDS + 1):
            for task in again(self.results, only, number):
                self.measure(task)
        for task in ordered(self.results, only, variants):
            self.leave_out(task)
        self.write()

    def left(self) -> float:
        return self.until - time.monotonic()

    def measure(self, task: Task) -> None:
        """Measure a task if there is time for it, and write its rows."""
        if self.left() < LEAST:
            return
        if task.name.startswith("torch") and self.results["about"]["PyTorch"].startswith("none"):
            self._rows(task)[task.name] = {"error": f"PyTorch: {self.results['about']['PyTorch']}"}
            return
        print(f"{self.left():4.0f} s left: {task.section} {task.name}", flush=True)
        if task.section == "kernels":
            self._kernels(min(task.limit, self.left()))
        else:
            self._step(task, min(task.limit, self.left()))
        self.write()

    def _step(self, task: Task, limit: float) -> None:
        process = Process([HERE / "gpu_steps.py", task.section, task.name, *self.options], limit)
        lines = list(process.lines())
        if process.code == 0 and not process.timed_out and lines:
            row = json.loads(lines[-1])
        else:
            row = {"error": _why(process, limit < task.limit)}
        rows = self._rows(task)
        if task.round == 1:
            rows[task.name] = row | {"rounds": 1}
        elif "blocks" in row:
            held = rows[task.name]
            held["blocks"] += row["blocks"]
            held["rate"] = held["rate"] * held["rounds"] / task.round + row["rate"] / task.round
            held["rounds"] = task.round

    def _rows(self, task: Task) -> dict[str, Any]:
        rows: dict[str, Any] = self.results["steps"].setdefault(task.section, {})
        return rows

    def _kernels(self, limit: float) -> None:
        # A call that crashes the process or hangs fails alone: a new process measures the rows after it.
        end, tried = time.monotonic() + limit, set()
        self.results["kernels"].pop("process", None)
        while rows := [(s, n) for s, n in self._undone() if n not in tried]:
            begun, since, left = "", time.monotonic(), end - time.monotonic()
            if left < LEAST:
                return
            process = Process([HERE / "gpu_kernels.py", *self.options, "--rows", *(n for _, n in rows)], left)
            for line in process.lines():
                found = json.loads(line)
                begun, since = found.get("begun", ""), time.monotonic()
                tried.add(found.get("begun", found.get("name")))
                if not begun:
                    self.results.setdefault(found["section"], {})[found["name"]] = found["row"]
                    self.write()
            if not begun and (process.code or process.timed_out or not tried):
                self.results["kernels"]["process"] = {"error": _why(process, False)}
                return
            for section, name in rows:
                if name == begun:
                    hangs = time.monotonic() - since > ROW
                    self.results.setdefault(section, {})[name] = {"error": _why(process, not hangs)}

    def _undone(self) -> list[tuple[str, str]]:
        names = gpu_kernels.names(self.results["tiny"])
        return [(s, n) for s, n in names if _state(self.results.get(s, {}).get(n)) != "measured"]

    def leave_out(self, task: Task) -> None:
        """Mark the rows of a task for which there was no time."""
        if task.section != "kernels":
            self._rows(task).setdefault(task.name, {"error": NO_TIME})
            return
        for section, name in self._undone():
            self.results.setdefault(section, {}).setdefault(name, {"error": NO_TIME})

    def write(self) -> None:
        (self.folder / "gpu.json").write_text(json.dumps(self.results, indent=1) + "\n", "utf-8")
        (self.folder / "gpu.md").write_text(gpu_table.table(self.results), "utf-8")


def _why(process: Process, cut: bool) -> str:
    if process.timed_out:
        return NO_TIME if cut else f"{TOO_LONG} {process.limit:.0f} s"
    return process.error or f"ended with status {process.code}"


def begun(folder: Path, about: dict[str, str], fresh: bool, tiny: bool) -> Results:
    """The results in gpu.json if they are of the same environment and day; otherwise none, and the file is renamed."""
    old, new = folder / "gpu.json", {"about": about, "tiny": tiny, "steps": {}, "kernels": {}, "products": {}}
    if not old.exists():
        return new
    held: dict[str, Any] = json.loads(old.read_text("utf-8"))
    why = "--fresh" if fresh else "; ".join(gpu_facts.differences(held["about"], about))
    why = why or ("sizes of --tiny" if held["tiny"] != tiny else "")
    if not why:
        changed = held["about"]["ampkit"] != about["ampkit"]
        held["about"]["ampkit"] += f"; later rows: {about['ampkit']}" if changed else ""
        return held
    kept = folder / f"gpu-{held['about']['date'].replace(':', '')}.json"
    old.rename(kept)
    print(f"begun anew ({why}); the old figures are in {kept}")
    return new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[*WORK, "kernels"], choices=[*WORK, "kernels"])
    parser.add_argument("--variants", nargs="+", default=(), help="of steps, in this order; all by importance")
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--fresh", action="store_true", help="do not go on with the rows of an earlier run")
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulated"), help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="sizes that say nothing, to see whether it runs")
    args = parser.parse_args()
    end_children_when_terminated()
    until = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    process = Process([HERE / "gpu_facts.py", "--device", args.device], 90)
    lines = list(process.lines())
    if not lines:
        sys.exit(f"gpu: needs a GPU that ampkit can use, got {_why(process, False).splitlines()[-1]}")
    about = json.loads(lines[-1]) | {"command": shlex.join(["python", "-m", "tests.bench.gpu", *sys.argv[1:]])}
    bench = Bench(begun(args.out, about, args.fresh, args.tiny), args.out, until, args.device)
    bench.run(args.only, args.variants)
    print(gpu_table.table(bench.results))


if __name__ == "__main__":
    main()

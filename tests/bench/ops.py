"""Time every op that has a CPU kernel beside PyTorch's: forward and backward, three dtypes, shapes of models.

    pip install torch && python tests/bench/ops.py [--quick] [--only PATTERN] [--dtype bfloat16] [--json FILE]
    python tests/bench/ops.py --against OLD.json        exits with 1 if an op became slower relative to PyTorch

Each library runs in its own process, with the same inputs; in each round one computes for some milliseconds while the
other sleeps. Times are medians over all calls, a call with its backward into leaves; a ratio above 1 means that ampkit
is faster, and rows below 0.9 are bold. The gradient is a dense array, or one number broadcast by `.sum()`. Where other
work uses the machine, `--threads 1 --quantile 0.1` varies least: two threads wait for each other, and so for that work.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from op_calls import CASES, Row, rows  # noqa: E402
from op_cases import DTYPES, SIZES  # noqa: E402
from processes import Worker, end_children_when_terminated  # noqa: E402

LIBRARIES = ("ampkit", "torch")
PARTS = ("forward", "backward", "both")
TURN, QUICK_TURN = 0.02, 0.01  # seconds of calls of one library in a round
LONG = 2.0  # seconds: a row that has taken longer gets no further round
SLOW = 0.9


# the rounds


class Bench:
    """The processes of the libraries and what they measured: {row's key: {library: {part: seconds}}}."""

    def __init__(self, libraries: list[str], threads: int, quantile: float):
        self.libraries, self.threads, self.quantile = libraries, threads, quantile
        self.workers: dict[str, Worker] = {}

    def ask(self, library: str, request: Any) -> Any:
        if library not in self.workers:
            self.workers[library] = Worker([HERE / "op_calls.py", library, self.threads])
        try:
            return self.workers[library].ask(request)
        except EOFError as error:  # a kernel crashed: the next row gets a new process
            self.workers.pop(library).end()
            return {"error": str(error)}

    def measure(self, row: Row, rounds: int, seconds: float) -> dict[str, Any]:
        times: dict[str, list[Any]] = {library: [] for library in self.libraries}
        errors: dict[str, Any] = {}
        start = time.monotonic()
        for done in range(rounds):
            if done and (CASES[row.op][1].once or time.monotonic() - start > LONG):
                break
            for library in [library for library in self.libraries if library not in errors]:
                answer = self.ask(library, [row, seconds])
                if isinstance(answer, dict):
                    errors[library] = answer
                else:
                    times[library] += answer
        return {library: typical(found, self.quantile) for library, found in times.items() if found} | errors

    def end(self) -> None:
        for process in self.workers.values():
            process.end()


def typical(times: list[tuple[float, float]], quantile: float = 0.5) -> dict[str, float]:
    """The quantile of each part's times, by default the median."""
    columns = [*zip(*times, strict=True), tuple(map(sum, times))]
    return {part: sorted(column)[int(quantile * len(column))] for part, column in zip(PARTS, columns, strict=True)}


# the table


def ratio(found: dict[str, Any], part: str = "both") -> float | None:
    """PyTorch's time divided by ampkit's."""
    ours, theirs = (found.get(library, {}).get(part) for library in LIBRARIES)
    return theirs / ours if ours and theirs else None


def line(row: Row, found: dict[str, Any]) -> str:
    """One line of the table, bold below SLOW, or what failed."""
    name = row.op + (f", {row.layout}" if row.layout != "contiguous" else "")
    name += ", behind .sum()" if row.gradient == "sum" else ""
    failed = [f"{library}: {found[library]['error']}" for library in found if "error" in found[library]]
    shown = [f"{r:.2f}" if (r := ratio(found, part)) else "-" for part in PARTS]
    shown += [
        f"{1e3 * found[library]['both']:.3g}" if "both" in found.get(library, {}) else "-" for library in LIBRARIES
    ]
    if (ratio(found) or 1) < SLOW or "error" in found.get("ampkit", {}):
        name, shown[2] = f"**{name}**", f"**{shown[2]}**"
    return f"| {' | '.join([name, row.size, *shown])} |" + "".join(f" {f}" for f in failed)


def summary(results: dict[Row, dict[str, Any]], dtype: str) -> str:
    """The geometric means of a dtype's ratios."""
    means = []
    for part in PARTS:
        logs = [math.log(r) for row, found in results.items() if row.dtype == dtype and (r := ratio(found, part))]
        means.append(f"{part} {math.exp(statistics.fmean(logs)):.2f}" if logs else f"{part} -")
    both = [r for row, found in results.items() if row.dtype == dtype and (r := ratio(found))]
    slow = sum(r < SLOW for r in both)
    return f"{dtype}: geometric mean {', '.join(means)}; {slow} of {len(both)} rows below {SLOW}"


def regressions(new: dict[str, Any], old: dict[str, Any], percent: float) -> dict[str, str]:
    """What happened to each row whose ratio fell by more than a percentage, or that fails now."""
    found = {}
    for key in [key for key in new if key in old]:
        before, now = ratio(old[key]), ratio(new[key])
        if "error" in new[key].get("ampkit", {}) and "error" not in old[key].get("ampkit", {}):
            found[key] = new[key]["ampkit"]["error"]
        elif before and now and now < before * (1 - percent / 100):
            found[key] = f"{before:.2f} before, {now:.2f} now"
    return found


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression of family or row")
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--size", nargs="+", choices=[*SIZES, "tiny"])
    parser.add_argument("--library", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quantile", type=float, default=0.5, help="of a row's times; below 0.5 on a busy machine")
    parser.add_argument("--quick", action="store_true", help="float32 and bfloat16, medium size, shorter turns")
    parser.add_argument("--tiny", action="store_true", help="ampkit alone, one call of each: does every row run?")
    parser.add_argument("--list", action="store_true", help="print the rows and measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--against", type=Path, metavar="OLD.json", help="list regressions; exit with 1 if there are any"
    )
    parser.add_argument("--percent", type=float, default=15.0, help="by which a ratio may fall below that of --against")
    args = parser.parse_args(arguments)
    if not 0 <= args.quantile < 1 or args.rounds < 1:
        parser.error("needs --rounds of at least 1 and a --quantile from 0 to below 1")
    if args.tiny:
        args.size, args.library, args.rounds = ["tiny"], ["ampkit"], 1
    if args.quick and args.dtype == list(DTYPES):
        args.dtype = ["float32", "bfloat16"]
    args.size = args.size or (["medium"] if args.quick else list(SIZES))
    args.turn = 0.0 if args.tiny else QUICK_TURN if args.quick else TURN
    return args


def selected(args: argparse.Namespace) -> list[Row]:
    found = rows(args.dtype, args.size, layouts=not args.quick)
    return [row for row in found if re.search(args.only, f"{CASES[row.op][0]}: {row.key}")]


def run(args: argparse.Namespace, chosen: list[Row]) -> dict[Row, dict[str, Any]]:
    """Measure rows and print each as soon as it is measured."""
    bench, results, dtype = Bench(args.library, args.threads, args.quantile), {}, None
    try:
        for row in chosen:
            if row.dtype != dtype:
                dtype = row.dtype
                columns = ["op", "size", *PARTS, "ampkit, ms", "torch, ms"]
                print(f"\n### {dtype}\n\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
            results[row] = bench.measure(row, args.rounds, args.turn)
            print(line(row, results[row]), flush=True)
    finally:
        bench.end()
    return results


def keyed(results: dict[Row, dict[str, Any]]) -> dict[str, Any]:
    return {row.key: found for row, found in results.items()}


def compare(args: argparse.Namespace, results: dict[Row, dict[str, Any]], old: dict[str, Any]) -> bool:
    """Print the regressions since --against, each of them measured twice, and return whether there are any."""
    worse = regressions(keyed(results), old, args.percent)
    if worse:
        print(f"\n{len(worse)} rows are slower than in {args.against} and measured again:")
        again = run(args, [row for row in results if row.key in worse])
        worse = regressions(keyed(again), old, args.percent)
    lines = [f"{key}: {said}" for key, said in worse.items()]
    print(f"\n{len(worse)} regressions of more than {args.percent:g} %", *lines, sep="\n")
    return bool(worse)


def main() -> None:
    args = options()
    if args.list:
        print("\n".join(row.key for row in selected(args)))
        return
    end_children_when_terminated()
    old = json.loads(args.against.read_text())["rows"] if args.against else None  # --json may overwrite it
    start, results = time.monotonic(), run(args, selected(args))
    print("", *(summary(results, dtype) for dtype in args.dtype), f"{time.monotonic() - start:.0f} s", sep="\n\n")
    if args.json:
        about = {"machine": platform.processor() or platform.machine(), "threads": args.threads}
        args.json.write_text(json.dumps({**about, "quantile": args.quantile, "rows": keyed(results)}, indent=1) + "\n")
    if old is not None:
        sys.exit(compare(args, results, old))


if __name__ == "__main__":
    main()

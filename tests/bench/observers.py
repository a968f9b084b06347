"""What it costs that kernels can be observed, while nothing observes them: steps of ampkit, in turns with a copy from
whose source every `if observers:` was cut.

    python -m tests.bench.observers [--repeats 8] [--rounds 30] [--recipe text_gpt digits_cnn] [--dtype float32 float16]

Four processes on one thread take steps in turns: ampkit, ampkit once more (how far two equal processes differ is the
noise), the copy, and ampkit after a step that was profiled, watched and checked for infinities. A process is faster or
slower than an equal one by a percent or two for as long as it lives, since its memory is elsewhere: all is repeated
with new ones. Prints the CPU time of a step, and ratios to the first process: the mean over the repeats of the median
over the rounds, with its standard error.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from .processes import ROOT, Worker

VARIANTS = ["ampkit", "ampkit again", "without the tests", "after observing"]
LENGTH = ["train.threads=1", "train.log_every=100000", "train.eval_every=", "train.epochs=", "train.steps=100000"]
WARMUP = 5
TESTED = {"observers", "profilers", "following"}  # the lists of ampkit/base/observe.py and ampkit/core/module_path.py


class Cut(ast.NodeTransformer):
    """Replaces each `if` and conditional expression that asks whether one of TESTED has entries by its other branch."""

    count = 0

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        return (node.orelse or ast.copy_location(ast.Pass(), node)) if self._asks(node.test) else node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        return node.orelse if self._asks(node.test) else node

    def _asks(self, test: ast.expr) -> bool:
        parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
        found = any(getattr(part, "attr", getattr(part, "id", "")) in TESTED for part in parts)
        Cut.count += found
        return found


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module from its source, past all caches of compiled code, for the copy without the tests."""

    cuts = False

    def get_code(self, name: str) -> Any:
        tree = ast.parse(self.get_data(self.path))
        return compile(Cut().visit(tree) if Loader.cuts else tree, self.path, "exec", dont_inherit=True)


class Finder:
    """Finds the modules of ampkit, for Loader."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        found = importlib.machinery.PathFinder.find_spec(name, path) if name.partition(".")[0] == "ampkit" else None
        if found is not None and isinstance(found.loader, importlib.machinery.SourceFileLoader):
            found.loader = Loader(found.loader.name, found.loader.path)
        return found


def worker(variant: str, recipe: str, dtype: str) -> None:
    """Read numbers of steps from stdin; for each, take the steps and print their CPU seconds."""
    Loader.cuts = variant == "without the tests"
    sys.meta_path.insert(0, Finder)
    from ampkit import config, debug, observe, profile
    from ampkit.run.loop import fit

    run = fit(config.load(str(ROOT / "recipes" / f"{recipe}.toml"), [f"amp.dtype={dtype}", *LENGTH]))
    if variant == "after observing":
        with profile(), debug.detect_nonfinite(), observe.watch(lambda name, inputs, output: None):
            run.advance()
    for line in sys.stdin:
        start = time.process_time()
        for _ in range(int(line)):
            run.advance()
        print(json.dumps({"seconds": time.process_time() - start, "cut": Cut.count}), flush=True)


def compare(recipe: str, dtype: str, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each round's step by variant, in new processes; the order of the variants rotates."""
    arguments = ["-m", "tests.bench.observers", "--recipe", recipe, "--dtype", dtype, "--worker"]
    processes = {variant: Worker([*arguments, variant]) for variant in VARIANTS}
    cut = {variant: process.ask(WARMUP)["cut"] for variant, process in processes.items()}
    assert [variant for variant in VARIANTS if cut[variant]] == ["without the tests"], cut
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for number in range(rounds):
        at = number % len(VARIANTS)
        for variant in VARIANTS[at:] + VARIANTS[:at]:
            found[variant].append(processes[variant].ask(1)["seconds"])
    for process in processes.values():
        process.end()
    return found


def row(recipe: str, dtype: str, rounds: int, repeats: int) -> str:
    """A line of the table."""
    seconds: list[float] = []
    ratios: dict[str, list[float]] = {variant: [] for variant in VARIANTS[1:]}
    for _ in range(repeats):
        found = compare(recipe, dtype, rounds)
        first = found[VARIANTS[0]]
        seconds += first
        for variant, each in ratios.items():
            each.append(statistics.median(a / b for a, b in zip(found[variant], first, strict=True)))
    shown = [f"{statistics.mean(r):.4f} ± {statistics.stdev(r) / repeats**0.5:.4f}" for r in ratios.values()]
    return f"| {recipe} | {dtype} | {statistics.median(seconds) * 1e3:.2f} | {' | '.join(shown)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--recipe", nargs="+", default=["text_gpt", "digits_cnn"])
    parser.add_argument("--dtype", nargs="+", default=["float32", "float16"])
    parser.add_argument("--worker", choices=VARIANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.recipe[0], given.dtype[0])
        return
    print(f"| recipe | dtype | ms a step | {' | '.join(VARIANTS[1:])} |\n|---|---|---|{'---|' * len(VARIANTS[1:])}")
    for recipe in given.recipe:
        for dtype in given.dtype:
            print(row(recipe, dtype, given.rounds, given.repeats), flush=True)


if __name__ == "__main__":
    main()

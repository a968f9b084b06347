"""Each case of an op with an axis of length 0: of one of its arrays at a time, and of all that share the length.

    python -m tests.fuzz.emptied [--only gather] [--exact-memory]

An index, a weight, offsets, a residual, running statistics or a member of a list without elements gives what the
reference gives, or one error in words of ours: kernels look at the first array alone to tell that there is work to do.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import Any

from ampkit import ops
from ampkit.base.errors import AmpkitError
from ampkit.core.dispatch import reference_only
from ampkit.testing import Case, Draw

from .kernels import (
    DTYPES,
    Trial,
    cases,
    exact_memory,
    kernels_of_any_size,
    poisoned_memory,
    replaced,
)


def emptied(case: Case) -> Iterator[Case]:
    """The case with an axis of length 0, in every way."""
    draws: list[Draw] = []
    replaced([*case.inputs, *case.params.values()], lambda draw: draws.append(draw) or draw)
    for n in sorted({n for draw in draws for n in draw.shape if n}):
        yield _with_draws(case, lambda draw, at, n=n: tuple([0 if m == n else m for m in draw.shape]))
    for place, draw in enumerate(draws):
        shapes = [(*draw.shape[:axis], 0, *draw.shape[axis + 1 :]) for axis in range(len(draw.shape))]
        for shape in dict.fromkeys([(0,), *shapes]):
            yield _with_draws(case, lambda each, at, p=place, s=shape: s if at == p else each.shape)


def _with_draws(case: Case, shape_of: Callable[[Draw, int], tuple[int, ...]]) -> Case:
    count = iter(range(1000))

    def by(draw: Draw) -> Draw:
        return replace(draw, shape=shape_of(draw, next(count)))

    inputs = replaced(list(case.inputs), by)
    return Case(case.name, *inputs, **dict(zip(case.params, replaced(list(case.params.values()), by), strict=True)))


class EmptyTrial(Trial):
    """A case without some elements; its arrays, and which of them require grad, are drawn by `number`."""

    def __init__(self, case: Case, number: int):
        self.layouts, self.random, self.original = ("part", "C"), Random(number), case
        self.dtype = DTYPES[number % len(DTYPES)]
        self.draw(case)

    def answer(self) -> Any:
        """What the op gives, or the error that it raises."""
        try:
            return self.run()
        except Exception as error:
            return error

    def finding(self) -> str:
        """How an answer differs from the reference's, or an error that is not ours, in one line; "" for none."""
        with reference_only():
            wanted = self.answer()
        found = self.answer()
        errors = [each for each in (wanted, found) if isinstance(each, Exception)]
        if errors and hasattr(ops, self.case.name):  # the others rely on what calls them
            raw = [each for each in errors if not isinstance(each, AmpkitError)]
            if raw or len(errors) == 1:
                return f"{self}: {type((raw or errors)[0]).__name__}: {(raw or errors)[0]}"
        return "" if errors else self.difference(found, wanted)


def trials(only: str = "") -> Iterator[EmptyTrial]:
    """Two of each case and way: gradients of inputs are wanted or not by chance."""
    number = 0
    for case in cases(only):
        for each in emptied(case):
            for _ in range(2):
                try:
                    yield EmptyTrial(each, number)
                except ValueError:  # no such numbers can be drawn
                    break
                number += 1


def main() -> int:
    """Run the trials, print the findings; return 1 if there are any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="the name of an op")
    parser.add_argument("--exact-memory", action="store_true", help="no pool of memory, no gaps between arrays")
    options = parser.parse_args()
    start, count, findings = time.monotonic(), 0, 0
    memory = exact_memory() if options.exact_memory else nullcontext()
    with kernels_of_any_size(), poisoned_memory(), memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial in trials(options.only):
            finding, count = trial.finding(), count + 1
            findings += bool(finding)
            if finding:
                print(finding, flush=True)
    print(f"{count} trials in {time.monotonic() - start:.0f} s, {findings} findings")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())

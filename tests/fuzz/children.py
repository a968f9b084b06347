"""Campaigns of trials in child processes, so that a crash ends one trial and not the campaign."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

GOOD = ("read", "refused")
# Of the trials of a name with these numbers, in a folder of their own: the outcome of each, and what it says.
Outcomes = Callable[[str, range, Path], Iterable[tuple[str, str]]]


def campaign(name: str, count: int, outcomes: Outcomes) -> tuple[Counter[str], list[str]]:
    """Run `count` trials; return counts of outcomes and a line for each that is not GOOD. Prints a line of counts."""
    begun = time.monotonic()
    found, lines, number = Counter[str](), [], 0
    while number < count:
        for kind, said in _in_child(name, range(number, count), outcomes):
            found[kind] += 1
            if kind not in GOOD:
                lines.append(f"{name} {number}: {kind}: {said}")
            number += 1
    counts = ", ".join(f"{kind} {found[kind]}" for kind in sorted(found))
    line = f"{name:12} {count} files: {counts} ({time.monotonic() - begun:.0f} s)"
    sys.stdout.write("\n".join([line, *lines[:20], ""]))
    sys.stdout.flush()
    return found, lines


def _in_child(name: str, numbers: range, outcomes: Outcomes) -> Iterator[tuple[str, str]]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        status = 1
        try:
            _report(name, numbers, outcomes, writing)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as rows:
        for row in rows:
            kind, _, said = row.strip("\n").partition("\t")
            yield kind, said
    if status := os.waitpid(child, 0)[1]:
        yield "crash", f"status {os.waitstatus_to_exitcode(status)}"


def _report(name: str, numbers: range, outcomes: Outcomes, writing: int) -> None:
    with os.fdopen(writing, "w", 1, errors="backslashreplace") as out, tempfile.TemporaryDirectory() as folder:
        for kind, said in outcomes(name, numbers, Path(folder)):
            out.write(f"{kind}\t{' '.join(said.split())}\n")

"""The figures of docs/reliability.md: measure them and rewrite the page, or check that they still hold.

    python -m tests.reliability                 # measure every figure, and rewrite the page: one to two hours
    python -m tests.reliability api ulps        # these alone
    python -m tests.reliability --short         # minutes: the same programs with fewer trials, and the page unchanged

Figures are kept in tests/golden/reliability.json, from which the page's paragraphs between `<!-- measured: NAME -->`
and `<!-- end -->` are written. The short form exits with status 1, and says which, where a figure no longer holds: a
count of faults that is not 0, fewer functions or ops than the page says, a larger error. Needs the extras `mpi` and
`peers`; the short form leaves out what lacks its packages, and says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from .measures import MEASURES, Measure
from .page import date_and_commit, load, save


def output_of(commands: tuple[str, ...]) -> str:
    """Run the commands and return what they print. An exit status other than 0 is for the figures to show."""
    found = []
    for command in commands:
        print(f"+ {command}", flush=True)
        words = [sys.executable if word == "python" else word for word in command.split()]
        settings = [words.pop(0) for word in list(words) if "=" in word and word[0].isupper()]
        environment = os.environ | dict(each.split("=", 1) for each in settings)
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        found.append(done.stdout)
        if done.returncode:
            print(f"status {done.returncode}\n{done.stdout}")
    return "\n".join(found)


def missing(measure: Measure) -> list[str]:
    """The packages that a measure needs and that are not installed."""
    return [name for name in measure.needs if importlib.util.find_spec(name) is None]


def check(measure: Measure) -> list[str]:
    """Which figures of the page the short form contradicts; none where packages are missing."""
    if lacking := missing(measure):
        print(f"{measure.name}: left out, needs {', '.join(lacking)}")
        return []
    return measure.contradictions(measure.read(output_of(measure.short)), load()[measure.name])


def measure_anew(measure: Measure) -> list[str]:
    """Run the long form and rewrite the page. Returns which faults it found."""
    if lacking := missing(measure):
        return [f"needs {', '.join(lacking)}"]
    began = time.monotonic()
    figures = measure.read(output_of(measure.long))
    figures |= date_and_commit() | {"minutes": round((time.monotonic() - began) / 60, 1)}
    save(load() | {measure.name: figures})
    return measure.contradictions(figures, figures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(MEASURES))
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"needs names of {', '.join(MEASURES)}, got {', '.join(sorted(unknown))}")
    chosen, failed = options.names or list(MEASURES), False
    judge = check if options.short else measure_anew
    with ThreadPoolExecutor(2 if options.short else 1) as pool:  # most programs are one process; the page has times
        for name, faults in zip(chosen, pool.map(lambda name: judge(MEASURES[name]), chosen), strict=True):
            failed |= bool(faults)
            print(f"{name}: {'; '.join(faults) or 'holds'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

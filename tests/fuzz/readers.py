"""Fuzz the file readers: mutated small files of every format must be read correctly or refused in one line.

    python -m tests.fuzz.readers --count 1000 --seed 0 [--format npy ...]

`count` files of each format are read in child processes; the exit status is 1 if one of them led to a raw error, to
other values than an independent reader finds, to a hang, to excessive memory, or to a crash.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ampkit.base.errors import AmpkitError

from . import children
from .formats import FORMATS, NEEDS, Format

SECONDS = 5.0  # of the CPU, so that a busy machine makes no hangs
MEMORY = 96 * 2**20  # bytes that reading a file of a few kilobytes may take


class _HangError(BaseException):
    pass


def cases(name: str, seed: int, numbers: range, folder: Path) -> Iterator[tuple[str, str]]:
    """For each number: the outcome of reading one mutated file, and a message."""
    form = FORMATS[name]
    for number in numbers:
        draw = Random(f"{seed} {name} {number}")
        place = folder / f"{name}-{number}"
        place.mkdir()
        path = draw.choice(form.make(place, draw))
        path.write_bytes(form.mutate(path.read_bytes(), draw))
        yield outcome(form, path)
        for each in place.iterdir():
            each.unlink()
        place.rmdir()


def outcome(form: Format, path: Path) -> tuple[str, str]:
    """How reading ends: read, refused, raw, wrong, hang or memory; and the message."""
    before, begun = _resident(), time.process_time()
    kind, said, values = _tried(form, path)
    if (seconds := time.process_time() - begun) > SECONDS:
        return "hang", f"{seconds:.1f} s"
    if (taken := _peak() - before) > MEMORY:
        return "memory", f"{taken >> 20} MiB for {path.stat().st_size} bytes"
    if kind == "read" and form.truth is not None and not _same(values, form, path):
        return "wrong", "other values than another reader's"
    return kind, said


def _tried(form: Format, path: Path) -> tuple[str, str, Any]:
    signal.signal(signal.SIGPROF, _hang)
    signal.setitimer(signal.ITIMER_PROF, SECONDS + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return "read", "", form.read(path)
    except AmpkitError as error:
        lines = str(error).splitlines()
        fine = lines[0].count("needs") and len(lines) <= 2 and len(lines[0]) < 2000
        several = form in (FORMATS["recipe"], FORMATS["override"])  # these report a line per mistake
        return ("refused" if fine or several else "raw"), str(error)[:300], None
    except _HangError:
        return "hang", "", None
    except BaseException as error:  # a Rust panic is not an Exception
        return "raw", f"{type(error).__name__}: {str(error)[:200]}", None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _hang(*_: object) -> None:
    raise _HangError


def _same(values: Any, form: Format, path: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            truth = form.truth(path)  # type: ignore[misc]  # a form without one is not read so
        except Exception:  # the other reader refuses the file
            return True
        return _equal(values, truth)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, np.ndarray):
        return a.shape == np.shape(b) and a.tobytes() == np.asarray(b, a.dtype).tobytes()
    return bool(a == b)


def _resident() -> int:
    """Reset the peak of resident memory to its current value and return it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return sys.maxsize
    return _peak()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def available() -> list[str]:
    """The formats whose libraries are installed."""
    return [name for name in FORMATS if find_spec(NEEDS.get(name, "numpy"))]


def campaign(name: str, seed: int, count: int) -> tuple[Counter[str], list[str]]:
    """Read `count` files of a format in child processes; see children.campaign."""
    return children.campaign(name, count, lambda name, numbers, folder: cases(name, seed, numbers, folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", nargs="*", choices=list(FORMATS), default=available())
    options = parser.parse_args()
    bad = sum(len(campaign(each, options.seed, options.count)[1]) for each in options.format)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

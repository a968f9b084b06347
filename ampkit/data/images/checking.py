"""Finds the files that cannot be read, before anything is trained on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from ...backends.cpu.threads import usable_cpus
from ...backends.threads import on_this_device
from ...base.errors import FileError, some_of
from ...base.progress import advanced
from .files import check, need_readers

Depth = Literal["pixels", "headers"]

_AT_ONCE = 64  # files of a task of a thread
_CHEAP = 2**28  # bytes of files: their pixels are decoded within seconds
_SHOWN = 3  # files that an error names


def unreadable(paths: Sequence[Path], depth: Depth | None = None) -> dict[int, str]:
    """The files that cannot be read: why, by their index; where that is known, with what helps in a second line.

    depth: "pixels" decodes each file, "headers" only those whose end is not the end of an image. None: pixels up to
    256 MiB of files, else headers. Raises FileError if Pillow is needed and not installed.
    """
    need_readers(paths)
    pixels = depth == "pixels" if depth else sum(_size(path) for path in paths) <= _CHEAP
    return dict(_faults(paths, pixels))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the check of the file itself tells
        return 0


def _faults(paths: Sequence[Path], pixels: bool) -> Iterator[tuple[int, str]]:
    def faults_from(first: int) -> list[tuple[int, str]]:
        part = enumerate(paths[first : first + _AT_ONCE], first)
        return [(index, why) for index, path in part if (why := _fault(path, pixels)) is not None]

    pool = ThreadPoolExecutor(usable_cpus())
    try:
        for number, found in enumerate(pool.map(on_this_device(faults_from), range(0, len(paths), _AT_ONCE)), 1):
            advanced("checking images", min(number * _AT_ONCE, len(paths)), len(paths))
            yield from found
    finally:
        pool.shutdown(cancel_futures=True)


def _fault(path: Path, pixels: bool) -> str | None:
    try:
        check(path, pixels)
    except FileError as error:
        line, _, cure = str(error).partition("\nhelp: ")
        why = line.rpartition(", got ")[2].removeprefix("one that breaks: ")
        return f"{why}\n{cure}" if cure else why
    return None


def cure_of(faults: Mapping[int, str]) -> str:
    """What helps: the cure of the first file that has one, or to do without them."""
    known = next((cure for index in sorted(faults) if (cure := faults[index].partition("\n")[2])), "")
    return known or "repair or delete them"


def in_words(root: Path, paths: Sequence[Path], faults: Mapping[int, str]) -> str:
    """How many files cannot be read, the first of them, and why."""
    shown = [(index, faults[index].partition("\n")[0]) for index in sorted(faults)]
    named = [f"{paths[index].relative_to(root)} ({why})" for index, why in shown]
    return f"{len(faults)} of {len(paths)} that cannot be read: {some_of(named, _SHOWN)}"

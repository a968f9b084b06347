"""Byte-level text: a corpus, its split into training and validation, and windows for next-byte prediction.

data = text.corpus()
train, validation = text.split(data)
starts = text.random_starts(train, context=128, count=12, draw=random.generator(seed, step))
inputs, targets = text.windows(train, starts, context=128)
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ArgumentError, ConfigError
from ..base.files import foreign, opened, read
from ..base.limits import Bytes, Fraction
from ..base.registry import Splits, register_dataset

VOCABULARY = 256
LIMIT = 16 * 2**20  # bytes: above the standard library's 7 MB, and read in a fraction of a second
STRETCH = 256 * 2**10  # bytes between the starts of two parts for validation

# Excluded from the standard library's corpus: generated files, and packages that some distributions leave out.
_NOT_STANDARD = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"}
    | {"distutils", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo"}
)
_GENERATED = ("_sysconfig", "config-")


def corpus(path: str | Path | None = None, limit: int = LIMIT) -> NDArray[np.uint8]:
    """The first `limit` bytes of a file, or of the text files under a folder in the order of their names.

    -> [n] uint8. Without a path: the sources of Python's standard library, without tests, generated tables and
    packages that distributions leave out: the same bytes for the same release of Python. A text file is one without a
    zero byte in its first 8 KiB; hidden files and folders are skipped.
    Raises ConfigError for a path that does not exist or contains no text, FileError for one that cannot be read or is
    neither a regular file nor a folder, ArgumentError for a limit below 1.
    """
    if limit < 1:
        raise ArgumentError("text.corpus", "limit of at least 1 byte", str(limit))
    files = _standard_library() if path is None else _text_files(Path(path))
    found = b"".join(_take(files, limit))
    if not found:
        raise ConfigError("text", "a file or a folder with text", f"{str(path)!r}, which holds none")
    return np.frombuffer(found, np.uint8)


def split(data: NDArray[np.uint8], fraction: float = 0.1) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Split into training and validation bytes: the last `fraction` of every 256 KiB is for validation.

    Not the end of the corpus alone: files are ordered by name, so that would be a few packages unlike the others.
    [n] -> ([n - m], [m]), m about n * fraction, at least 1. Raises ArgumentError unless 0 < fraction < 1.
    """
    if not 0 < fraction < 1:
        raise ArgumentError("text.split", "a fraction between 0 and 1", str(fraction))
    blocks = np.array_split(data, max(1, round(len(data) / STRETCH)))
    parts = [np.split(part, [len(part) - max(1, round(len(part) * fraction))]) for part in blocks]
    train, validation = zip(*parts, strict=True)
    return np.concatenate(train), np.concatenate(validation)


def random_starts(data: NDArray[np.uint8], context: int, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """`count` random start indices of windows of `context` bytes and their targets. -> [count] int64.

    Raises ConfigError if the data is too short.
    """
    return draw.integers(_start_count(data, context), size=count)


def even_starts(data: NDArray[np.uint8], context: int, count: int | None = None) -> NDArray[np.int64]:
    """Evenly spaced start indices of windows for validation, from 0 to the last possible one. -> [count] int64.

    Windows overlap only if the count requires it; without a count, as many as fit without overlap.
    Raises ConfigError if the data is too short.
    """
    starts = _start_count(data, context)
    windows = 1 + (starts - 1) // context if count is None else count
    return np.linspace(0, starts - 1, windows).astype(np.int64)


def windows(
    data: NDArray[np.uint8], starts: NDArray[np.int64], context: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The windows at `starts` [b], and their targets, shifted by one byte: both [b, context] int64."""
    taken = data[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return taken[:, :-1], taken[:, 1:]


def _start_count(data: NDArray[np.uint8], context: int) -> int:
    """The number of start indices of windows of context + 1 bytes."""
    if context < 1:
        raise ArgumentError("text", "a context of at least 1 byte", str(context))
    if len(data) <= context:
        cure = "give more text, a shorter context or another share for validation"
        raise ConfigError("text", f"more than {context} bytes, a window and its next byte", f"{len(data)} bytes", cure)
    return len(data) - context


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    found = ((file, file.relative_to(root).parts) for file in _files_under(root, "*.py"))
    return [file for file, parts in found if not (_NOT_STANDARD & {*parts} or parts[0].startswith(_GENERATED))]


def _text_files(path: Path) -> Iterable[Path]:
    if not path.exists():
        raise ConfigError("text", "a file or a folder that exists", repr(str(path)))
    if not path.is_dir():
        return [path]
    found = ((file, file.relative_to(path).parts) for file in _files_under(path, "*"))
    visible = (file for file, parts in found if not any(p.startswith(".") or p == "__pycache__" for p in parts))
    return (file for file in visible if b"\0" not in _start(file, 8192))


def _files_under(root: Path, pattern: str) -> list[Path]:
    files = (file for file in root.rglob(pattern) if file.is_file())
    return sorted(files, key=lambda file: file.relative_to(root).parts)


def _start(file: Path, size: int) -> bytes:
    with opened(file, "text") as stream, foreign("text", f"a file that can be read at {str(file)!r}"):
        return read(stream, size)


def _take(files: Iterable[Path], limit: int) -> Iterator[bytes]:
    """Yield the content of the files, up to `limit` bytes in all; no more than that is read."""
    for file in files:
        part = _start(file, limit)
        yield part
        limit -= len(part)
        if limit <= 0:
            return


def load_splits(path: str | Path | None = None, limit: Bytes = LIMIT, validation: Fraction = 0.1) -> Splits:
    """The bytes of a text file, of the text files of a folder, or of Python's standard library.

    path: a file or a folder; unset, the standard library. limit: the most bytes to read. validation: the fraction of
    every 256 KiB that is held out.
    """
    return Splits(*split(corpus(path, limit), validation))


register_dataset(
    "text", load_splits, "tokens", "text", defaults={"batch_size": 12}, constants={"least_vocab": VOCABULARY}
)

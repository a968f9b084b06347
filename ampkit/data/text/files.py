"""Text files as bytes, or as tokens of a tokenizer, for the prediction of the next one."""

from __future__ import annotations

import codecs
import sysconfig
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.errors import ArgumentError, ConfigError, FileError, some_of
from ...base.files import foreign, opened, read
from ...base.limits import Bytes, Fraction
from ...base.registry import Splits, register_dataset
from ..file_patterns import files_under, find
from ..tables import read as tables
from ..tables.column import values_of
from ..tables.encodings import decode, encoding_of
from ..tables.read import Format
from .tokenizer import Tokenizer, load_tokenizer

Numbers = NDArray[np.uint8] | NDArray[np.int32]  # of bytes, or of tokens

VOCABULARY = 256
LIMIT = 16 * 2**20  # bytes: above the standard library's 7 MB, and read in a fraction of a second
STRETCH = 256 * 2**10  # bytes or tokens between the starts of two parts for validation

# Excluded from the standard library's corpus: generated files, and packages that some distributions leave out.
_NOT_STANDARD = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"}
    | {"distutils", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo"}
)
_GENERATED = ("_sysconfig", "config-")


def corpus(path: str | Path | None = None, limit: int = LIMIT, encoding: str = "utf-8") -> NDArray[np.uint8]:
    """The first `limit` bytes of a file, or of the text files of a folder or pattern in the order of their names.

    -> [n] uint8, the text in UTF-8. Without a path: the sources of Python's standard library, without tests, generated
    tables and packages that distributions leave out: the same bytes for the same release of Python. Of a folder, hidden
    files and folders are skipped, and so is what has a zero byte in its first 8 KiB and no mark of UTF-16.
    encoding: of files that do not begin with Unicode's byte order mark; "bytes" takes files as they are.
    Raises ConfigError for a path that does not exist or contains no text, FileError for a file that cannot be read, is
    binary or not of the encoding, ArgumentError for a limit below 1.
    """
    return _corpus(path, limit, encoding).data


class _Corpus(NamedTuple):
    """encodings: the number of files by the encoding that they were read in. skipped: binary files of a folder."""

    data: NDArray[np.uint8]
    encodings: Counter[str]
    skipped: list[Path]

    def note(self) -> str:
        """What was taken, in a line."""
        files = ", ".join(f"{count} file{'s' * (count > 1)} in {name}" for name, count in self.encodings.items())
        skipped = some_of([path.name for path in self.skipped], 3)
        return f"text: {len(self.data):,} bytes of {files}" + (f"; skipped as binary: {skipped}" if skipped else "")


def _corpus(path: str | Path | None, limit: int, encoding: str) -> _Corpus:
    if limit < 1:
        raise ArgumentError("text.corpus", "limit of at least 1 byte", str(limit))
    files = _standard_library() if path is None else _text_files(Path(path))
    encodings, skipped, parts = Counter[str](), list[Path](), list[bytes]()
    for file in files:
        if path is not None and Path(path).is_dir() and _is_binary(_start(file, 8192)):
            skipped.append(file)
            continue
        taken, part = _in_utf8(file, limit, "bytes" if path is None else encoding)
        encodings[taken] += 1
        parts.append(part)
        if (limit := limit - len(part)) <= 0:
            break  # later files are not opened
    if not (found := b"".join(parts)):
        raise ConfigError("text", "a file or a folder with text", f"{str(path)!r}, which holds none")
    return _Corpus(np.frombuffer(found, np.uint8), encodings, skipped)


def split(data: Numbers, fraction: float = 0.1) -> tuple[Numbers, Numbers]:
    """Split bytes or tokens into training and validation: the last `fraction` of every 256 Ki is for validation.

    Not the end of the corpus alone: files are ordered by name, so that would be a few packages unlike the others.
    [n] -> ([n - m], [m]), m about n * fraction, at least 1. Raises ArgumentError unless 0 < fraction < 1.
    """
    if not 0 < fraction < 1:
        raise ArgumentError("text.split", "a fraction between 0 and 1", str(fraction))
    blocks = np.array_split(data, max(1, round(len(data) / STRETCH)))
    parts = [np.split(part, [len(part) - max(1, round(len(part) * fraction))]) for part in blocks]
    train, validation = zip(*parts, strict=True)
    return np.concatenate(train), np.concatenate(validation)


def random_starts(data: Numbers, context: int, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """`count` random start indices of windows of `context` bytes and their targets. -> [count] int64.

    Raises ConfigError if the data is too short.
    """
    return draw.integers(_start_count(data, context), size=count)


def even_starts(data: Numbers, context: int, count: int | None = None) -> NDArray[np.int64]:
    """Evenly spaced start indices of windows for validation, from 0 to the last possible one. -> [count] int64.

    Windows overlap only if the count requires it; without a count, as many as fit without overlap.
    Raises ConfigError if the data is too short.
    """
    starts = _start_count(data, context)
    windows = 1 + (starts - 1) // context if count is None else count
    return np.linspace(0, starts - 1, windows).astype(np.int64)


def windows(data: Numbers, starts: NDArray[np.int64], context: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The windows at `starts` [b], and their targets, shifted by one byte: both [b, context] int64."""
    taken = data[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return taken[:, :-1], taken[:, 1:]


def _start_count(data: Numbers, context: int) -> int:
    """The number of start indices of windows of context + 1 bytes."""
    if context < 1:
        raise ArgumentError("text", "a context of at least 1 byte", str(context))
    if len(data) <= context:
        cure = "give more text, a shorter context or another share for validation"
        raise ConfigError("text", f"more than {context} bytes, a window and its next byte", f"{len(data)} bytes", cure)
    return len(data) - context


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).parts)
    found = ((file, file.relative_to(root).parts) for file in files if file.is_file())
    return [file for file, parts in found if not (_NOT_STANDARD & {*parts} or parts[0].startswith(_GENERATED))]


def _text_files(path: Path) -> Sequence[Path]:
    """The files of a path, a folder or a pattern."""
    if path.is_dir():
        return files_under(path)
    try:
        return [path] if path.exists() else find(path, "text", "a file or a folder with text", ())
    except FileError:
        raise ConfigError("text", "a file or a folder that exists", repr(str(path))) from None


def _is_binary(start: bytes) -> bool:
    return b"\0" in start and encoding_of(start) not in ("utf-16", "utf-32")


def _start(file: Path, size: int) -> bytes:
    with opened(file, "text") as stream, foreign("text", f"a file that can be read at {str(file)!r}"):
        return read(stream, size)


def _in_utf8(file: Path, limit: int, encoding: str) -> tuple[str, bytes]:
    """The encoding of a file, and at most `limit` bytes of its text in UTF-8."""
    data = _start(file, limit)
    taken = encoding if encoding == "bytes" else encoding_of(data, encoding)
    if taken == "bytes":
        return taken, data
    wide = 1 if taken == "utf-8" else 4  # bytes of a character at most, against one in UTF-8
    data = data if wide == 1 else _start(file, wide * limit)
    return taken, decode(file, data, encoding, cut=len(data) == wide * limit).encode()[:limit]


def load_splits(
    path: str | Path | None = None,
    limit: Bytes = LIMIT,
    validation: Fraction = 0.1,
    encoding: str = "utf-8",
    column: str | None = None,
    tokenizer: str | None = None,
) -> Splits:
    """The bytes of a text file, of the text files of a folder or pattern, or of Python's standard library.

    path: a file, a folder, or a pattern such as "books/**/*.txt"; unset, the standard library. limit: the most bytes to
    read. validation: the fraction of every 256 Ki bytes or tokens that is held out. encoding: of files that do not
    begin with a mark that says it; "bytes" takes files as they are. column: with the text in tables (JSON lines, CSV,
    Parquet), a row to a line. tokenizer: whose tokens the model sees in place of bytes: gpt2, another model of the
    Hugging Face Hub, or the path of a tokenizer.json, or of a folder with vocab.json and merges.txt.
    """
    tokens = None if tokenizer is None else load_tokenizer(tokenizer)
    if tokens is not None and encoding == "bytes":
        raise ConfigError("data.encoding", "one of text, for data.tokenizer", "'bytes'")
    data, note = _read(path, limit, encoding, column)
    if tokens is None:
        return Splits(*split(data, validation), notes=(note,) if note else ())
    made = tokens.encode(_text(data))
    counts = f"{len(made):,} tokens of {tokenizer}, {len(data) / max(1, len(made)):.1f} bytes each"
    return Splits(*split(made, validation), notes=(f"{note}; {counts}" if note else counts,), tokenizer=tokens)


def _read(path: str | Path | None, limit: int, encoding: str, column: str | None) -> tuple[NDArray[np.uint8], str]:
    """The bytes, and a line that says of what they are."""
    if column is not None:
        return _of_column(path, limit, encoding, column)
    found = _corpus(path, limit, encoding)
    return found.data, "" if path is None else found.note()


def elsewhere(data: Any, paths: Sequence[str | Path], about: Mapping[str, Any]) -> Numbers:
    """The whole text of another file, folder or pattern, as bytes or by the tokenizer that a run was trained with."""
    if len(paths) != 1:
        raise ConfigError("evaluate", "one file, folder or pattern of text", f"{len(paths)}")
    found, _ = _read(paths[0], data.limit, data.encoding, data.column)
    return Tokenizer.from_state(about["tokenizer"]).encode(_text(found)) if "tokenizer" in about else found


def _text(data: NDArray[np.uint8]) -> str:
    """The text of UTF-8, whose last character may be cut."""
    return codecs.getincrementaldecoder("utf-8")().decode(data.tobytes())


def _of_column(path: str | Path | None, limit: int, encoding: str, column: str) -> tuple[NDArray[np.uint8], str]:
    if path is None:
        raise ConfigError("data.path", "a table, for data.column", "none")
    table = tables.read(path, Format(encoding=encoding))
    cells = values_of(table, column, "text")
    data = "\n".join(cell for cell in cells if cell is not None).encode()[:limit]
    return np.frombuffer(data, np.uint8), f"text: {len(data):,} bytes of column {column!r} in {len(table):,} rows"


register_dataset(
    "text",
    load_splits,
    "tokens",
    "text",
    defaults={"batch_size": 12},
    constants={"least_vocab": VOCABULARY},
    elsewhere=elsewhere,
)

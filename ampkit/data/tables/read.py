"""Read tables: CSV, TSV, JSON lines, Parquet and Arrow files, as lists of cells, with the place of every row."""

from __future__ import annotations

import csv
import io
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from ...base.errors import ConfigError, FileError
from ...base.files import content, reason
from ...base.near_names import did_you_mean
from .. import file_patterns
from ..file_patterns import Patterns
from . import parquet_files
from .encodings import decode

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_JSON = (".jsonl", ".ndjson")
SUFFIXES = (*_DELIMITERS, *_JSON, *parquet_files.SUFFIXES)
NULLS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")  # cells of CSV that are nulls
_SHOWN = 20  # names of columns that an error lists


class Format(NamedTuple):
    """How text files are written. delimiter: of CSV, by default what the name's ending says. nulls: cells of CSV."""

    delimiter: str | None = None
    encoding: str = "utf-8"
    nulls: Sequence[str] = NULLS


CSV = Format()


class _Part(NamedTuple):
    """A file. cells(name): of a column, None for a null. places: of each row, as in "line 7". typed: not mere text."""

    path: Path
    names: Sequence[str]
    cells: Callable[[str], list[Any]]
    places: Sequence[str | int]
    typed: bool


@dataclass(frozen=True)
class Table:
    """The rows of one or several files with the same columns, in the order of the files."""

    parts: tuple[_Part, ...]

    def __len__(self) -> int:
        return sum(len(part.places) for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in the order of the first file."""
        return tuple(self.parts[0].names)

    @property
    def typed(self) -> bool:
        """Whether the files say what is a number and what is text, unlike CSV."""
        return self.parts[0].typed

    def need(self, name: str) -> None:
        """Raise FileError for a file without this column."""
        for part in self.parts:
            _need_column(part, name)

    def cells(self, name: str) -> list[Any]:
        """The cells of a column [n]: numbers, booleans, dates or text, of CSV text alone; None for nulls.

        Raises FileError for a file without such a column.
        """
        self.need(name)
        return [cell for part in self.parts for cell in part.cells(name)]

    def where(self, row: int) -> str:
        """The file and the place of a row, for errors."""
        ends = list(accumulate(len(part.places) for part in self.parts))
        part = self.parts[at := bisect_right(ends, row)]
        place = part.places[row - (ends[at - 1] if at else 0)]
        return f"{part.path}, {'row' if isinstance(part.places, range) else 'line'} {place}"


def _need_column(part: _Part, name: str) -> None:
    if name in part.names:
        return
    shown = ", ".join(each if each.isprintable() else repr(each) for each in part.names[:_SHOWN])
    cure = did_you_mean(name, part.names)
    if len(part.names) == 1 and (mark := next((each for each in ";\t|" if each in shown), None)):
        cure = f"the values seem to be separated by {mark!r}: data.delimiter={json.dumps(mark)}"
    raise FileError(str(part.path), f"a column {name!r}", f"only {shown}", cure)


def read(patterns: Patterns, format: Format = CSV) -> Table:
    """Read the files of a path, a folder, a pattern or a list of these, each by the ending of its name.

    Raises FileError, naming the file and the line, for files that are missing, empty, or not of their format: lines
    with more or fewer values than the header, columns of one name.
    """
    paths = file_patterns.find(patterns, "table", f"files that end in {', '.join(SUFFIXES)}", SUFFIXES)
    parts = tuple(_read(path, format) for path in paths)
    for part in parts:
        if not part.places:
            raise FileError(str(part.path), "at least one row", "none")
        if part.typed != parts[0].typed:
            raise FileError(str(part.path), "files of one format", f"another one than {parts[0].path}")
    return Table(parts)


def _read(path: Path, format: Format) -> _Part:
    suffix = path.suffix.lower()
    if suffix in parquet_files.SUFFIXES:
        return _from_arrow(path)
    if suffix not in SUFFIXES:
        raise FileError(str(path), f"a name that ends in {', '.join(SUFFIXES)}", f"{suffix or 'none'!r}")
    text = decode(path, content(path, "table"), format.encoding)
    if suffix in _JSON:
        return _from_json_lines(path, text)
    return _from_csv(path, text, format.delimiter or _DELIMITERS[suffix], {*format.nulls})


def _from_csv(path: Path, text: str, delimiter: str, nulls: Collection[str]) -> _Part:
    if len(delimiter) != 1:
        raise ConfigError("data.delimiter", "one character", repr(delimiter))
    rows, places = [], list[int]()
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header = [name.strip() for name in next(_rows(path, lines), [])]
    _check_header(path, header)
    for row in _rows(path, lines):
        if len(row) != len(header):
            got, more = f"{len(row)}", "put values with a delimiter in double quotes"
            cure = (
                more if len(row) > len(header) else "leave the place of a missing value empty, between two delimiters"
            )
            needs = f"{len(header)} values, as in the header"
            raise FileError(f"{path}, line {lines.line_num}", needs, got, cure)
        rows.append(row)
        places.append(lines.line_num)

    def cells(name: str) -> list[str | None]:
        at = header.index(name)
        return [None if (cell := row[at].strip()) in nulls else cell for row in rows]

    return _Part(path, header, cache(cells), places, False)


def _rows(path: Path, lines: Any) -> Iterator[list[str]]:
    """The rows of a CSV reader, but empty lines."""
    while True:
        try:
            row = next(lines, None)
        except csv.Error as error:
            cure = "a double quote within quotes is written twice"
            raise FileError(f"{path}, line {lines.line_num}", "CSV", f"{reason(error)}", cure) from None
        if row is None:
            return
        if row:
            yield row


def _check_header(path: Path, names: Sequence[str]) -> None:
    if not names:
        raise FileError(str(path), "a line with the names of the columns, and rows", "an empty file")
    _check_names(path, names)
    if all(map(is_number, names)):
        got = f"numbers, {', '.join(names[:3])}"
        raise FileError(f"{path}, line 1", "the names of the columns", got, "write them above the rows")


def _check_names(path: Path, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise FileError(str(path), f"one column {name!r}", f"{count} of this name", "give each a name of its own")


def is_number(text: str) -> bool:
    """Whether text is a number as CSV has them."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # which only Python's own numbers may have


def _from_json_lines(path: Path, text: str) -> _Part:
    objects, places = list[dict[str, Any]](), list[int]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            objects.append(_object(f"{path}, line {number}", line))
            places.append(number)
    names = [*dict.fromkeys(name for each in objects for name in each)]
    return _Part(path, names, lambda name: [each.get(name) for each in objects], places, True)


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise FileError(where, "one JSON object in a line", f"one that breaks: {reason(error)}") from None
    if not isinstance(found, dict):
        raise FileError(where, 'a JSON object, such as {"height": 1.5}', line[:40])
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key that occurs twice")
    return found


def _from_arrow(path: Path) -> _Part:
    file = parquet_files.opened(path)
    with parquet_files.reading(path):
        names = list(file.schema.names)
        count = sum(map(file.rows, range(file.count)))
    _check_names(path, names)

    def cells(name: str) -> list[Any]:
        with parquet_files.reading(path):
            return [cell for g in range(file.count) for cell in file.read(g, [name]).column(name).to_pylist()]

    return _Part(path, names, cache(cells), range(count), True)

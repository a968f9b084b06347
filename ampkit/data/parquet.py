"""Datasets of selected columns of Parquet and Arrow files, read on demand as tensors. Needs pyarrow.

rows = Columns("table-*.parquet", ["height", "width", "label"])
for height, width, label in DataLoader(rows, batch_size=32, shuffle=True): ...
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ..base.errors import AmpkitError, ArgumentError, ConfigError, FileError
from ..base.limits import Classes, Fraction, ImageShape, Names, Seed
from ..base.registry import Splits, register_dataset
from ..core import random
from ..core.tensor import Tensor
from .datasets import BatchDataset, Subset
from .samples import GAPS, need_classes, need_finite, row_of, shape_key
from .tables import parquet_files

KEPT = 16  # row groups in the cache
_SHOWN = 20  # names of columns that an error lists
_ROWS_PER_BYTE = 1024  # an upper bound, against files that claim absurd numbers of rows


class Columns(BatchDataset):
    """The rows of one or several files; item i is a tuple of tensors, one per column: a 0-d value or a row [n].

    files: a path, a pattern such as "part-*.parquet", or a list of them; matches are read in the order of their names.
    A row group of a `.parquet` file is read whole when one of its rows is needed, and the last `kept` row groups are
    cached: to shuffle rows, use row groups that fit in the cache, or Arrow's format. `.arrow` and `.feather` files
    (Arrow IPC, not compressed) are memory-mapped.
    columns: names of columns of integers, floats or booleans, which keep their dtype, or of lists of these with the
    same length n in every row.
    Raises FileError for files that are missing, of another format or empty, for columns that are missing or not
    numeric, and without pyarrow; when rows are read, for nulls and for lists of different lengths. Raises ArgumentError
    without columns.
    """

    def __init__(self, files: str | Path | Sequence[str | Path], columns: Sequence[str], kept: int = KEPT):
        if isinstance(columns, str) or not columns:
            raise ArgumentError("Columns", "the names of columns, at least one", repr(columns))
        self.columns, self.kept = tuple(columns), kept
        self.paths = parquet_files.find(files)
        self._files = [parquet_files.opened(path) for path in self.paths]
        for path, file in zip(self.paths, self._files, strict=True):
            _check_columns(path, file.schema, self.columns)
        self._groups = [(at, group) for at, file in enumerate(self._files) for group in range(file.count)]
        self._ends = list(accumulate(self._rows(at, group) for at, group in self._groups))
        if not len(self):
            raise FileError(f"columns: {self.paths[0]}", "at least one row", "none")
        self._read: OrderedDict[int, list[NDArray[Any]]] = OrderedDict()
        self._lock = threading.Lock()  # pyarrow's readers are not thread-safe
        _open.add(self)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def batch(self, indices: Any, epoch: int = 0) -> list[Tensor]:
        """The rows at `indices` [b]: a tensor [b] or [b, n] for each column; `epoch` is ignored."""
        return [Tensor(array) for array in self.arrays(indices)]

    def arrays(self, indices: Any) -> list[NDArray[Any]]:
        """What `batch` gives, as NumPy arrays."""
        wanted = np.asarray(indices, np.int64)
        groups = np.array([bisect_right(self._ends, index) for index in wanted.tolist()], np.int64)
        parts: list[list[NDArray[Any]]] = []
        for group in np.unique(groups).tolist():
            first = self._ends[group - 1] if group else 0
            parts.append([values[wanted[groups == group] - first] for values in self._group(group)])
        order = np.argsort(np.argsort(groups, kind="stable"), kind="stable")
        return [
            self._joined(name, column)[order]
            for name, column in zip(self.columns, zip(*parts, strict=True), strict=True)
        ]

    def place(self, index: int) -> str:
        """The file and the number in it of the row `index`, for errors."""
        group = bisect_right(self._ends, index)
        start = self._ends[group - 1] if group else 0
        return f"columns: {self.paths[self._groups[group][0]]}, row {self._first(group) + index - start}"

    def width(self) -> int:
        """How many numbers the first row has: 1 in a column of numbers, n in one of lists."""
        kinds = [self._files[0].schema.field(name).type for name in self.columns]
        if all(_inner(kind) is kind for kind in kinds):
            return len(kinds)  # without reading
        return sum(array[0].size for array in self.arrays([0]))

    def __getstate__(self) -> dict[str, Any]:
        # A worker process opens the files itself.
        return {"files": self.paths, "columns": self.columns, "kept": self.kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Columns.__init__(self, **state)

    def _group(self, number: int) -> list[NDArray[Any]]:
        with self._lock:
            found = self._read.pop(number, None) or self._from_file(number)
            self._read[number] = found  # most recently used last
            while len(self._read) > self.kept:
                self._read.popitem(last=False)
        return found

    def _rows(self, at: int, group: int) -> int:
        path = self.paths[at]
        with parquet_files.reading(path):
            rows, size = self._files[at].rows(group), path.stat().st_size
        if not 0 <= rows <= _ROWS_PER_BYTE * size:
            raise FileError(f"columns: {path}", f"as many rows as {size} bytes can hold", f"{rows}")
        return rows

    def _first(self, number: int) -> int:
        """The number, in its file, of the first row of the row group `number`."""
        at = self._groups[number][0]
        of_file = next(n for n, (other, _) in enumerate(self._groups) if other == at)
        start, before = (self._ends[n - 1] if n else 0 for n in (number, of_file))
        return start - before

    def _from_file(self, number: int) -> list[NDArray[Any]]:
        at, group = self._groups[number]
        path, file = self.paths[at], self._files[at]
        with parquet_files.reading(path):
            table, rows = file.read(group, list(dict.fromkeys(self.columns))), file.rows(group)
            given = [table.column(name) for name in self.columns]
        first = self._first(number)
        found = [_values(path, name, column, first) for name, column in zip(self.columns, given, strict=True)]
        for name, values in zip(self.columns, found, strict=True):
            if len(values) != rows:
                raise FileError(f"columns: {path}", f"{rows} rows in column {name!r}", f"{len(values)}")
        return found

    def _joined(self, name: str, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        widths = sorted({part.shape[1:] for part in parts})
        if len(widths) != 1:
            lengths = ", ".join(str(shape[0]) if shape else "a single value" for shape in widths)
            raise FileError(f"columns: {name}", "lists of one length", f"lengths {lengths} in different parts")
        return np.concatenate(parts)


_open: WeakSet[Columns] = WeakSet()


def _unlock_all() -> None:
    # A lock that another thread holds during a fork would stay locked in the child forever.
    for columns in _open:
        columns._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)


class Table(BatchDataset):
    """The rows of `columns` as (input [*shape] float32, label [] int64).

    The last column is the label; the other columns are concatenated and reshaped to the input.

    classes: their number, None where labels are not compared with it.
    Raises FileError, when rows are read, for labels that are no integers or no class, for rows whose number of values
    is not that of `shape`, and for NaN and infinity.
    """

    def __init__(self, columns: Columns, shape: Sequence[int], classes: int | None = None):
        self.columns, self.shape, self.classes = columns, tuple(shape), classes

    def __len__(self) -> int:
        return len(self.columns)

    def batch(self, indices: Any, epoch: int = 0) -> list[Tensor]:
        """The rows at `indices`: [inputs [b, *shape] float32, labels [b] int64]."""
        *inputs, labels = self.columns.arrays(indices)
        *names, label = self.columns.columns
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            got = f"{labels.dtype}" + (" lists" if labels.ndim > 1 else "")
            raise FileError("columns", f"an integer in each row of the target {label!r}", got)

        def where(number: int) -> str:
            return self.columns.place(int(np.asarray(indices)[number]))

        with np.errstate(over="ignore"):  # overflow to infinity is reported below
            parts = [part.reshape(len(part), -1).astype(np.float32) for part in inputs]
        for name, part in zip(names, parts, strict=True):
            need_finite(name, part, where)
        need_classes(label, labels, self.classes, where)
        joined = np.concatenate(parts, 1)
        if (count := joined.shape[1]) != prod(self.shape):
            needs = f"{' x '.join(map(str, self.shape))} values in a row of {', '.join(names)}, as data.shape says"
            cure = f"{shape_key([count])}, or another shape of {count} values"
            raise FileError("columns", needs, f"{count}", cure)
        return [Tensor(joined.reshape(-1, *self.shape)), Tensor(labels.astype(np.int64))]


def _check_columns(path: Path, schema: Any, columns: Sequence[str]) -> None:
    from pyarrow import types

    with parquet_files.reading(path):
        names = list(schema.names)  # pyarrow decodes the names here and may raise
    for name in columns:
        if name not in names:
            shown = ", ".join(each if each.isprintable() else repr(each) for each in names[:_SHOWN])
            raise FileError(f"columns: {path}", f"a column {name!r}", f"only {shown}")
        if (count := names.count(name)) > 1:
            raise FileError(f"columns: {path}", f"one column {name!r}", f"{count} of this name")
        inner = _inner(schema.field(name).type)
        if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
            cure = "leave it out, or write numbers in its place"
            raise FileError(f"columns: {path}", f"numbers in column {name!r}", f"{schema.field(name).type}", cure)


def _inner(kind: Any) -> Any:
    """The value type of a list type, or `kind` itself if it is no list."""
    from pyarrow import types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if lists else kind


def _first_gap(array: Any) -> int:
    """The first row with a null, or with one in its list."""
    if array.null_count:
        return int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
    return next(number for number, row in enumerate(array) if row.values.null_count)


def _values(path: Path, name: str, column: Any, first: int) -> NDArray[Any]:
    """A column as an array: [rows] of numbers, or [rows, length] of lists of one length; without a copy if possible.

    first: the number of the first row in the file, for errors.
    """
    import pyarrow as arrow

    with parquet_files.reading(path):
        column.validate(full=True)  # otherwise list offsets that point outside the buffer would be read
        array = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
        kind = array.type
        flat = array if _inner(kind) is kind else array.flatten()
        nulls = array.null_count or flat.null_count
        gap = _first_gap(array) if nulls else 0
    if nulls:
        got = f"{nulls} null{'s' if nulls > 1 else ''}, the first in row {first + gap}"
        raise FileError(f"columns: {path}", f"a value in every place of column {name!r}", got, GAPS)
    with parquet_files.reading(path):
        values = np.asarray(flat.to_numpy(zero_copy_only=False))
    if flat is array:
        return values
    length, rest = divmod(len(values), len(array)) if len(array) else (0, 0)
    fixed = arrow.types.is_fixed_size_list(kind)
    if rest or not (fixed or (np.diff(array.offsets.to_numpy(zero_copy_only=False)) == length).all()):
        cure = "cut or fill the lists to one length"
        raise FileError(f"columns: {path}", f"lists of one length in column {name!r}", "several", cure)
    return values.reshape(len(array), length)


def load_splits(
    files: str | Path,
    inputs: Names,
    target: str,
    classes: Classes,
    shape: ImageShape | None = None,
    validation: Fraction = 0.1,
    seed: Seed = 0,
) -> Splits:
    """Columns of numbers in Parquet or Arrow files, read while training; `table` reads text, dates and CSV too.

    files: a path, or a pattern such as "part-*.parquet". inputs: columns of numbers or of lists of numbers. target: the
    column with the class, from 0. classes: the number of classes. shape: of an input; unset, a row of as many numbers
    as the first row has. validation: the fraction of the rows that is held out. seed: of the random split.
    """
    rows = Table(Columns(files, [*inputs, target]), shape or row_of([Columns(files, inputs).width()]), classes)
    held_out = max(1, round(len(rows) * validation))
    if held_out >= len(rows):
        raise ConfigError("data.files", "at least two rows, one of them held out", f"{len(rows)}")
    order: Any = random.generator(seed, 0).permutation(len(rows))
    order[:held_out].sort()
    return Splits(Subset(rows, order[held_out:]), Subset(rows, order[:held_out]))


def complete(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a section with the shape of an input, which the first row tells where it is left out."""
    files, inputs = section.get("files"), section.get("inputs")
    if section.get("shape") is not None or not isinstance(inputs, list | tuple) or not isinstance(files, str | Path):
        return section
    shape = row_of([len(inputs)])
    with suppress(AmpkitError, TypeError):  # `load_splits` names what does not fit
        shape = row_of([Columns(files, inputs).width()])
    return {**section, "shape": shape}


def elsewhere(data: Any, paths: Sequence[str | Path], about: Mapping[str, Any]) -> Table:
    """All rows of other files."""
    return Table(Columns(paths, [*data.inputs, data.target]), data.shape, data.classes)


for _name in ("parquet", "arrow"):
    register_dataset(_name, load_splits, "images", "dataset", complete=complete, elsewhere=elsewhere)

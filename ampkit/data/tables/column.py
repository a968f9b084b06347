"""What the cells of a column are, and their values as numbers or text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...base.errors import FileError
from .read import Table, is_number

Kind = Literal["number", "boolean", "date", "text"]
_BOOLEANS = {"true": 1.0, "false": 0.0}
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].+)?")
_SECONDS_PER_DAY = 86_400


def kind_of(table: Table, name: str) -> Kind:
    """The kind of a column: that of all its cells but nulls, by their type, in CSV by how they are written.

    Numbers are as Python writes them, booleans true or false in any case, dates ISO 8601. What is none of these is
    text. Raises FileError for a column of nulls alone, and where most values, but not all, are numbers or dates.
    """
    cells = table.cells(name)
    distinct = _distinct(cells)
    if not distinct:
        cure = f"leave it out: data.exclude=[{name!r}]"
        raise FileError(str(table.parts[0].path), f"a value in column {name!r}", "nulls alone", cure)
    typed = table.typed
    for kind in ("boolean", "number", "date"):
        if all(_fits(cell, kind, typed) for cell in distinct):
            return kind
        fitting = {cell for cell in distinct if kind != "boolean" and _fits(cell, kind, typed)}
        if 2 * len(fitting) >= len(distinct) and len(fitting) > 1:
            row = next(i for i, cell in enumerate(cells) if cell is not None and cell not in fitting)
            raise _mixed(table.where(row), name, kind, cells[row])
    strange = next((i for i, cell in enumerate(cells) if cell is not None and not isinstance(cell, str)), None)
    if strange is not None:
        raise _mixed(table.where(strange), name, "text", cells[strange])
    return "text"


def _distinct(cells: Sequence[Any]) -> set[Any]:
    """The distinct cells but nulls, and but lists and tables, which are of no kind."""
    try:
        found = {*cells}
    except TypeError:
        found = {cell for cell in cells if cell.__hash__ is not None}
    return {cell for cell in found if cell is not None and cell == cell}


def _mixed(where: str, name: str, kind: Kind, cell: Any) -> FileError:
    cure = "mend it; or say that these are categories, data.categories, or how nulls are written, data.null_values"
    return FileError(where, f"{_WORDS[kind]} in column {name!r}, as in its other rows", repr(cell), cure)


_WORDS = {"number": "a number", "boolean": "true or false", "date": "a date such as 2024-12-31", "text": "text"}


def _fits(cell: Any, kind: Kind, typed: bool) -> bool:
    if kind == "date":
        return isinstance(cell, date) or (isinstance(cell, str) and _DATE.fullmatch(cell) is not None)
    if kind == "boolean":
        return isinstance(cell, bool) or (not typed and cell.lower() in _BOOLEANS)
    if typed:
        return isinstance(cell, int | float | Decimal) and not isinstance(cell, bool)
    return is_number(cell)


def values_of(table: Table, name: str, kind: Kind) -> NDArray[Any]:
    """The values of a column of a kind: [n] float64 with NaN for nulls; of text, objects with None for nulls.

    Booleans are 1 and 0, dates days since 1970 in UTC. Raises FileError for a cell of another kind or that is infinite.
    """
    convert, cells = _CONVERT[kind], table.cells(name)
    found = _all_converted(cells, convert)
    if found is None:
        row = next(i for i, cell in enumerate(cells) if _all_converted([cell], convert) is None)
        raise FileError(table.where(row), f"{_WORDS[kind]} in column {name!r}", repr(cells[row]))
    if kind == "text":
        values = np.empty(len(found), object)
        values[:] = found
        return values
    numbers = np.array([math.nan if each is None else each for each in found], np.float64)
    if (infinite := np.flatnonzero(np.isinf(numbers))).size:
        row = int(infinite[0])
        raise FileError(table.where(row), f"finite numbers in column {name!r}", repr(cells[row]))
    return numbers


def _all_converted(cells: Sequence[Any], convert: Callable[[Any], Any]) -> list[Any] | None:
    """The cells converted; None if one cannot be."""
    try:
        return [None if cell is None else convert(cell) for cell in cells]
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
        return None


def _boolean(cell: Any) -> float:
    return _BOOLEANS[str(cell).lower()]


def _days(cell: Any) -> float:
    if isinstance(cell, str):
        cell = datetime.fromisoformat(cell)
    if not isinstance(cell, datetime):
        cell = datetime(cell.year, cell.month, cell.day)
    moment = cell if cell.tzinfo else cell.replace(tzinfo=UTC)
    return moment.timestamp() / _SECONDS_PER_DAY


def _text(cell: Any) -> str:
    if type(cell) is str:
        return cell
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, str | int | float | Decimal | date):
        return str(cell)
    raise TypeError


_CONVERT: dict[Kind, Callable[[Any], Any]] = {"number": float, "boolean": _boolean, "date": _days, "text": _text}

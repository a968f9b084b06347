"""The table of a precision plan: a line for modules that run alike, as wide as the reader's screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..base.byte_sizes import bytes_in_words
from ..core.module_path import starred
from .plan_row import PlanRow

WIDTH = 100  # columns, where nothing else is known
HEAD = ("module", "op", "calls", "dtypes", "casts", "saved (of f32)", "why")
_DROPPED = ("calls", "casts")  # where the screen is too narrow, in this order
_SHORTEST = 12  # columns of a module that are always shown


def merge(rows: Iterable[PlanRow]) -> Iterable[PlanRow]:
    found: dict[tuple[Any, ...], PlanRow] = {}
    for row in rows:
        found[row.key] = found[row.key].plus(row) if row.key in found else row
    return found.values()


def merged(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Rows in which `*` stands for the numbers of modules that run alike, blocks.*.attn; in a backward, by op."""
    forward = merge(replace(row, path=starred(row.path)) for row in rows if row.phase == "forward")
    backward = joined(replace(row, path="(backward)") for row in rows if row.phase == "backward")
    return [*forward, *backward.values()]


def joined(rows: Iterable[PlanRow]) -> dict[tuple[str, str, str], PlanRow]:
    """One row for each op of a module, by phase, path and op, with the dtypes of all its calls."""
    found: dict[tuple[str, str, str], PlanRow] = {}
    for row in rows:
        held = found.get((row.phase, row.path, row.op))
        if held is not None:
            words: Any = {name: _both(getattr(held, name), getattr(row, name)) for name in ("output", "why")}
            row = replace(held.plus(row), inputs=tuple(dict.fromkeys((*held.inputs, *row.inputs))), **words)
        found[row.phase, row.path, row.op] = row
    return found


def _both(one: str, other: str) -> str:
    return ", ".join(dict.fromkeys((*one.split(", "), *other.split(", "))))


def table(rows: Iterable[PlanRow], width: int) -> list[str]:
    """Lines of a table of `rows`, of at most `width` columns where that can be."""
    return _fitting([HEAD, *map(cells, rows)], width)


def signed_table(rows: Iterable[tuple[str, PlanRow]], width: int) -> list[str]:
    """Lines of a table of rows with a sign before each, as `table` makes them."""
    return _fitting([("", *HEAD), *((sign, *cells(row)) for sign, row in rows)], width)


def cells(row: PlanRow) -> tuple[str, ...]:
    """A row of the table, for the columns of HEAD."""
    inputs = "/".join(dict.fromkeys(map(_short, row.inputs))) or "-"
    output = "/".join(map(_short, row.output.split(", ")))
    casts = f"{row.casts}" + (f"+{row.weight_casts}w" if row.weight_casts else "")
    share = f" ({row.saved / row.saved_float32:.0%})" if row.saved_float32 else ""
    saved = bytes_in_words(row.saved) + share if row.phase == "forward" else ""
    return row.path, row.op, str(row.calls), f"{inputs} -> {output}", casts, saved, row.why_in_short


def _short(dtype: str) -> str:
    return dtype.replace("bfloat", "bf").replace("float", "f")


def _fitting(rows: list[tuple[str, ...]], width: int) -> list[str]:
    for dropped in range(len(_DROPPED) + 1):
        kept = [i for i, name in enumerate(rows[0]) if name not in _DROPPED[:dropped]]
        shown = [tuple([row[i] for i in kept]) for row in rows]
        widths = _widths(shown)
        if (over := sum(widths) + 2 * (len(widths) - 1) - width) <= 0:
            return _aligned(shown)
    at = shown[0].index("module")
    longest = max(_SHORTEST, max(len(row[at]) for row in shown) - over)
    short = [row[at] if len(row[at]) <= longest else "..." + row[at][3 - longest :] for row in shown]
    return _aligned([(*row[:at], name, *row[at + 1 :]) for row, name in zip(shown, short, strict=True)])


def _widths(rows: list[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = _widths(rows)
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

"""What 16 bits lose, layer by layer and step by step, as a report shows it: `ranges.jsonl`, made small.

A long run has more sampled steps and layers than a page can show: neighbouring samples are added up to at most COLUMNS
columns, and exponent histograms to QUARTERS of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

from ...debug.range_rows import key_of, sample_of
from ...debug.ranges import RangeTotals

COLUMNS = 64
QUARTERS = 4
FORMATS = ("present", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
LOSSES = ("overflow", "subnormal", "flushed")


def precision_data(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns and layers of the sampled steps `rows`, in their order.

    steps: the last step of each column. layers: of each op of a layer and each parameter: what it is, the shares of
    values that formats lose by column (of those that lose any), the largest magnitude, and histograms. updates: by
    parameter, the shares of updates that 16-bit weights would lose, by column. recommendations: what all of them
    recommend, in words.
    """
    groups = _split(rows, COLUMNS)
    columns = [_by_key(group) for group in groups]
    quarters = [_by_key(group) for group in _split(rows, QUARTERS)]
    return {
        "steps": [group[-1]["step"] for group in groups],
        "formats": FORMATS,
        "layers": [_layer(key, columns, quarters) for key in _by_key(rows)],
        "updates": _updates(groups),
        "recommendations": _recommendations(rows),
    }


def _recommendations(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    totals = RangeTotals()
    for row in rows:
        with suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError):  # of another version
            totals.include(sample_of(row))
    return totals.recommendations()


def _split(rows: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    # Into at most `parts` runs of nearly equal length.
    count = min(parts, len(rows))
    return [rows[len(rows) * i // count : len(rows) * (i + 1) // count] for i in range(count)]


def _by_key(group: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in group:
        for each in row.get("ranges", ()):
            found.setdefault(key_of(each), []).append(each)
    return found


def _layer(key: tuple[Any, ...], columns: Sequence[Any], quarters: Sequence[Any]) -> dict[str, Any]:
    of, path, op, dtype, stored = key
    held = [column.get(key, ()) for column in columns]
    lost = {
        f"{name} {kind}": shares
        for name in FORMATS
        for at, kind in enumerate(LOSSES)
        if any(shares := [_share(found, name, at) for found in held])
    }
    largest = [_rounded(max((each.get("largest", 0.0) for each in found), default=0.0)) for found in held]
    scale = next((each["scale"] for found in reversed(held) for each in found if "scale" in each), 1.0)
    histograms = [_histogram(quarter.get(key, ())) for quarter in quarters]
    return {
        "of": of, "path": path, "op": op, "dtype": dtype, "stored": stored, "scale": scale,
        "lost": lost, "largest": largest, "histograms": histograms,
    }  # fmt: skip


def _share(found: Sequence[Mapping[str, Any]], name: str, at: int) -> float:
    count = sum(each.get("count", 0) for each in found)
    return _rounded(sum(each[name][at] for each in found if name in each) / count) if count else 0.0


def _histogram(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Exponent of the first bin, counts by exponent, and counts of zeros, inf and NaN, added up."""
    filled = [each for each in found if each.get("counts")]
    first = min((each["exponent"] for each in filled), default=0)
    size = max((each["exponent"] + len(each["counts"]) - first for each in filled), default=0)
    counts = [0] * size
    for each in filled:
        for i, count in enumerate(each["counts"], each["exponent"] - first):
            counts[i] += count
    names = ("zero", "inf", "nan")
    return {"exponent": first, "counts": counts} | {n: sum(each.get(n, 0) for each in found) for n in names}


def _updates(groups: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    paths = dict.fromkeys(each["path"] for group in groups for row in group for each in row.get("updates", ()))
    found: list[dict[str, Any]] = []
    for path in paths:
        columns = [[e for row in group for e in row.get("updates", ()) if e["path"] == path] for group in groups]
        changed = [sum(each["changed"] for each in column) for column in columns]
        found.append({"path": path})
        for name in ("float16", "bfloat16"):
            lost = [sum(each[name] for each in column) for column in columns]
            found[-1][name] = [_rounded(a / b) if b else 0.0 for a, b in zip(lost, changed, strict=True)]
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.2g}") if isfinite(value) else 0.0  # a damaged file may have any counts

"""What a sampled step says of each layer: ranges of values, what formats lose of them, and lost updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..amp.exponents import BIAS, EXPONENTS, FORMATS, LARGEST, SIZE, Losses, losses

ACTIVATION, GRADIENT, PARAMETER, PARAMETER_GRADIENT = "activation", "gradient", "parameter", "parameter gradient"
LOW = ("float16", "bfloat16")
Key = tuple[str, str, str, str, str]  # of, path, op, dtype, stored: see Range


@dataclass(frozen=True)
class Range:
    """The values of one kind that one op of a layer, or one parameter, had in a step.

    of: "activation", the output of an op; "gradient", what its backward made for its inputs; "parameter"; or "parameter
    gradient". path: of the module, or of the parameter. op: its name, "cast" for a cast to a narrower dtype, "" for a
    parameter. dtype: of the values counted. stored: the dtype they are kept in: for a cast what it makes, else `dtype`.
    scale: the loss scale that gradients are multiplied by, else 1. counts: a row of `amp.exponents`, of the values as
    they are, with their scale.
    """

    of: str
    path: str
    op: str
    dtype: str
    stored: str
    scale: float
    counts: np.ndarray[Any, Any]

    @property
    def key(self) -> Key:
        """What identifies it within a step."""
        return self.of, self.path, self.op, self.dtype, self.stored

    @property
    def count(self) -> int:
        """How many values."""
        return int(self.counts[:EXPONENTS].sum())

    @property
    def zero(self) -> int:
        """How many are zero."""
        return self.count - int(self.counts[EXPONENTS])

    @property
    def nan(self) -> int:
        """How many are NaN."""
        return int(self.counts[EXPONENTS + 1])

    @property
    def inf(self) -> int:
        """How many are infinite."""
        return int(self.counts[EXPONENTS - 1]) - self.nan

    @property
    def largest(self) -> float:
        """The largest finite magnitude, as stored: with the loss scale."""
        return float(np.int32(self.counts[LARGEST]).view(np.float32))

    def would_lose(self, name: str) -> Losses:
        """What the format `name`, a key of `amp.exponents.FORMATS`, would lose of the values with their scale."""
        return losses(self.counts, name)

    def lost(self) -> Losses:
        """What the stored dtype loses: overflown to infinity, subnormal (of less precision), flushed to zero.

        Where an op writes 16 bits itself, what it flushed is not known: it is among `zero`.
        """
        if self.stored not in LOW:
            return Losses(0, 0, 0)
        found = self.would_lose(self.stored)
        return found if self.stored != self.dtype else Losses(self.inf, found.subnormal, 0)

    def exponents(self) -> tuple[int, list[int]]:
        """The exponent e of the smallest values, and the number of values in [2^e, 2^(e+1)), [2^(e+1), ...) and on.

        Of gradients without their scale, which shifts them by a whole number (rounded, if it is no power of two).
        Zeros, inf, NaN, and what is subnormal in float32 are left out. (0, []) if none is left.
        """
        found = np.flatnonzero(self.counts[1 : EXPONENTS - 1]) + 1
        if not found.size:
            return 0, []
        first, last = int(found[0]), int(found[-1])
        return first - BIAS - shift_of(self.scale), [int(n) for n in self.counts[first : last + 1]]


@dataclass(frozen=True)
class Updates:
    """What 16-bit weights would lose of a parameter's update in a step.

    path: of the parameter. size: its elements. changed: how many the update changed. float16, bfloat16: how many of
    those would have stayed as they were in a weight of that dtype: round(round(weight) + update) == round(weight).
    """

    path: str
    size: int
    changed: int
    float16: int
    bfloat16: int


@dataclass(frozen=True)
class Sample:
    """A sampled step: its number, and what it found by layer.

    keys, scales, counts: of its ranges, in their order, as in `Range`; counts is [ranges, columns].
    """

    step: int
    keys: list[Key]
    scales: list[float]
    counts: np.ndarray[Any, Any]
    updates: list[Updates]

    @property
    def ranges(self) -> list[Range]:
        """The values of each layer."""
        return ranges_of(self.keys, self.scales, self.counts)

    def row(self) -> dict[str, Any]:
        """This sample as an object of JSON: step, ranges, updates.

        Of a range: of, path, op, dtype, stored, scale, count, zero, inf, nan, largest as in `Range`; exponent and
        counts as `Range.exponents` returns them; present, what the stored dtype loses, and float16, bfloat16,
        float8_e4m3fn and float8_e5m2, what these would: [overflow, subnormal, flushed], in values. Left out are
        numbers and lists of zeros, an empty op, a scale of 1, and `stored` where it is `dtype`. Of an update: the
        fields of `Updates`.
        """
        updates = [dict(vars(update)) for update in self.updates]
        return {"step": self.step, "ranges": list(self._range_rows()), "updates": updates}

    def _range_rows(self) -> Iterator[dict[str, Any]]:
        # By column, for all ranges at once: a row at a time takes ten times as long.
        counts, nonzero, nan = self.counts, self.counts[:, EXPONENTS], self.counts[:, EXPONENTS + 1]
        total, infinite = counts[:, :EXPONENTS].sum(1), counts[:, EXPONENTS - 1]
        largest = counts[:, LARGEST].astype(np.int32).view(np.float32)
        numbers: Iterable[Any] = zip(
            *(n.tolist() for n in (total, total - nonzero, infinite - nan, nan, largest, *_span(counts))), strict=True
        )
        limits = counts[:, EXPONENTS + 2 : LARGEST].reshape(-1, len(FORMATS), 3)
        overflow, subnormal = limits[..., 0] - infinite[:, None], limits[..., 2] - limits[..., 1]
        would: Any = np.stack([overflow, subnormal, nonzero[:, None] - limits[..., 2]], 2)
        lists = zip(would.tolist(), would.any(2).tolist(), strict=True)
        for key, scale, found, (lost, any_lost), row in zip(
            self.keys, self.scales, numbers, lists, counts, strict=True
        ):
            would_lose = [lost_of if there else None for lost_of, there in zip(lost, any_lost, strict=True)]
            yield _range_row(key, scale, found, would_lose, row)


def _span(counts: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    # By row, the first exponent that has values, and the one after the last.
    there = counts[:, 1 : EXPONENTS - 1] != 0
    return 1 + there.argmax(1), EXPONENTS - 1 - there[:, ::-1].argmax(1)


def _range_row(
    key: Key, scale: float, numbers: tuple[Any, ...], lost: list[list[int] | None], row: np.ndarray[Any, Any]
) -> dict[str, Any]:
    of, path, op, dtype, stored = key
    count, zero, inf, nan, largest, first, last = numbers
    present = None
    if stored in LOW:
        present = lost[LOW.index(stored)]
        if stored == dtype and (inf or present):
            present = [inf, present[1] if present else 0, 0]
    narrower, scaled = stored if stored != dtype else "", scale if scale != 1.0 else 0
    values = (of, path, op, dtype, narrower, scaled, zero, inf, nan, largest, present, *lost)
    found = {name: value for name, value in zip(_LEFT_OUT_IF_ZERO, values, strict=True) if value}
    counts = row[first:last].tolist()
    there = any(counts)
    found["count"], found["exponent"] = count, first - BIAS - shift_of(scale) if there else 0
    found["counts"] = counts if there else []
    return found


_LEFT_OUT_IF_ZERO = (
    *("of", "path", "op", "dtype", "stored", "scale", "zero", "inf", "nan", "largest", "present"),
    *FORMATS,
)  # LOW are the first two formats


def shift_of(scale: float) -> int:
    """By how many powers of two a loss scale has shifted gradients."""
    return round(math.log2(scale)) if scale > 0 else 0


def ranges_of(keys: Iterable[Key], scales: Iterable[float], counts: np.ndarray[Any, Any]) -> list[Range]:
    """The Range of each row of `counts`."""
    return [Range(*key, scale, row) for key, scale, row in zip(keys, scales, counts, strict=True)]


class Totals:
    """Rows of counts [columns], added up by key. largest: the column of which the largest is kept instead, or None."""

    def __init__(self, columns: int, largest: int | None = None):
        self.places: dict[Any, int] = {}
        self.counts, self.largest = np.zeros((0, columns), np.int64), largest

    def add(self, keys: Iterable[Any], counts: np.ndarray[Any, Any]) -> None:
        """Add the rows `counts`, of different `keys`."""
        at = [self.places.setdefault(key, len(self.places)) for key in keys]
        if new := len(self.places) - len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros((new, self.counts.shape[1]), np.int64)])
        total = self.counts[at] + counts
        if self.largest is not None:
            total[:, self.largest] = np.maximum(self.counts[at, self.largest], counts[:, self.largest])
        self.counts[at] = total


# reading rows again, so that a resumed run counts the steps before as well


def sample_of(row: Mapping[str, Any]) -> Sample:
    """The Sample whose `row` an object of JSON is. Raises KeyError, TypeError or ValueError for anything else."""
    ranges: list[Mapping[str, Any]] = row["ranges"]
    scales = [float(r.get("scale", 1.0)) for r in ranges]
    counts = np.array([_counts(r) for r in ranges], np.int64).reshape(-1, SIZE)
    updates = [Updates(**update) for update in row["updates"]]
    return Sample(int(row["step"]), list(map(key_of, ranges)), scales, counts, updates)


def key_of(found: Mapping[str, Any]) -> Key:
    """The key of the Range that an object of JSON is."""
    return found["of"], found["path"], found.get("op", ""), found["dtype"], found.get("stored", found["dtype"])


def _counts(found: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    counts = np.zeros(SIZE, np.int64)
    values, infinite = found["counts"], found.get("inf", 0) + found.get("nan", 0)
    if values:
        first = found["exponent"] + BIAS + shift_of(found.get("scale", 1.0))
        counts[1 : EXPONENTS - 1][first - 1 : first - 1 + len(values)] = values
    nonzero = found["count"] - found.get("zero", 0)
    counts[EXPONENTS - 1] = infinite
    counts[0] = found["count"] - counts[1:EXPONENTS].sum()
    counts[EXPONENTS : EXPONENTS + 2] = nonzero, found.get("nan", 0)
    for place, name in enumerate(FORMATS):
        overflow, subnormal, flushed = found.get(name, (0, 0, 0))
        kept = nonzero - flushed
        at = EXPONENTS + 2 + 3 * place
        counts[at : at + 3] = overflow + infinite, kept - subnormal, kept
    largest = min(float(found.get("largest", 0.0)), float(np.finfo(np.float32).max))  # of a damaged file
    counts[LARGEST] = np.float32(largest).view(np.int32)
    return counts

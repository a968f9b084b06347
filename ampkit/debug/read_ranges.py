"""Reads what `Sample.row` wrote, so that a resumed run counts the steps before as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..amp.exponents import BIAS, EXPONENTS, FORMATS, LARGEST, SIZE
from .range_rows import Sample, Updates, shift_of


def sample_of(row: Mapping[str, Any]) -> Sample:
    """The Sample whose `row` an object of JSON is. Raises KeyError, TypeError or ValueError for anything else."""
    ranges: list[Mapping[str, Any]] = row["ranges"]
    keys = [(r["of"], r["path"], r.get("op", ""), r["dtype"], r.get("stored", r["dtype"])) for r in ranges]
    scales = [float(r.get("scale", 1.0)) for r in ranges]
    counts = np.array([_counts(r) for r in ranges], np.int64).reshape(-1, SIZE)
    return Sample(int(row["step"]), keys, scales, counts, [Updates(**update) for update in row["updates"]])


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
    counts[LARGEST] = np.float32(found.get("largest", 0.0)).view(np.int32)
    return counts
